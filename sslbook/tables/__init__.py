"""Printed tables beside what we find: one way to read, hold, show and rerun them.

printed: a table as its paper has it, and what its labels say.  filled: the same with our numbers, as lines, grid or JSON.
ablation: what each cell of Tables 3 to 10 of [tian2021iclr] changes of BYOL.  command: the program ``sslbook table ID``, for
tables that chapters declare and :mod:`sslbook.chapters.catalogue` names.
"""
