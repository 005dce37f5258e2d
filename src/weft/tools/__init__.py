"""Tools: a picture of a program, a profile of its kernels, and what is wrong before it runs.

    wf.tools.show(step.explain(*args), "step.html")

    with wf.tools.profile() as profile:
        step(*args)
    print(profile)

    print(wf.tools.check(net, wf.spec("float32", ("batch", 784))))

>>> import weft as wf
>>> wf.tools.__all__
['check', 'profile', 'show', 'write_graph_events']
"""

from weft.tools.check import check
from weft.tools.profile import profile
from weft.tools.show import show
from weft.tools.tensorboard import write_graph_events

__all__ = ["check", "profile", "show", "write_graph_events"]
