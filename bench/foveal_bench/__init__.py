"""foveal beside its rivals, in one process: `foveal-bench run SUITE`, `foveal-bench report`."""
