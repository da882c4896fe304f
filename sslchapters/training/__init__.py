"""Chapter ``training``: the papers' tables on CIFAR-10 and STL-10, their presets, and runs that the chapter looks into."""
