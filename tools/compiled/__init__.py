"""The compiled build: which modules mypyc compiles, which rules they keep, and how it is made.

One source, two builds. Interpreted is what a checkout and the wheel for any platform have; the wheels for platforms have the
modules of `modules` compiled as well, beside their source, in one shared library. An interpreter takes a compiled module where
its name for extensions fits, and the source otherwise: workers of another Python find nothing that they could not run.

`docs/design.md` says why these modules and no others.
"""
