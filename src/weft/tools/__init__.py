"""Tools: a picture of a program, and a profile of its kernels.

    wf.tools.show(step.explain(*args), "step.html")

    with wf.tools.profile() as profile:
        step(*args)
    print(profile)

>>> import weft as wf
>>> wf.tools.__all__
['profile', 'show']
"""

from weft.tools.profile import profile
from weft.tools.show import show

__all__ = ["profile", "show"]
