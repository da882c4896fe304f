"""Linear BYOL: Appendix F of [tian2021iclr], the flow, its fixed points and where it goes.

theory: Eqs. 179 to 188, fixed points, Jacobians, spectra, exact moments.  instances: random problems, examples, worlds of features;
the flow integrated, BYOL and SimCLR trained.  checks: the two compared.  drawing: the chapter's figures.
"""
