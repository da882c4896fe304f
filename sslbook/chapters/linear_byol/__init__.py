"""Linear BYOL (chapter of the same name): Appendix F of [tian2021iclr], the flow, its fixed points and where it goes.

``flow``: Eqs. 179 to 181, what they conserve, and the steps that they are the limit of.  ``stability``: fixed points, Jacobians,
spectra.  ``starts``: verdicts against integration, and the ends of random starts.  ``scrambling``: two augmentations with exact
moments, and BYOL beside SimCLR.  ``scalar``: one unit and one mode, its fate, and Figure 5.  ``figures``: the chapter's figures.
"""
