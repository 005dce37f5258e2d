"""The fast path of a repeated call, and all that it knows of the interpreter.

Programs of one item run in microseconds, and to take a call's arguments apart costs as much. The
one question is `RepeatedCalls.recognise`: it gives the tensors of a call that was made before, and
what runs it, or None. It tries the last call by words of memory that a native function compares
(`memory_words.py`): one that leaves state alone (`last_call.py`), or a step on a card that writes
its state in place (`held_state.py`); then a key that is quick to make (`quick_key.py`).

Nothing depends on it but time: `wf.settings.fastcall = False`, or WEFT_FASTCALL=off, leaves every
call to the full key. Off, nothing native reads the interpreter's objects either.
"""
