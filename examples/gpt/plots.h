#pragma once
// The pictures of a run, drawn by gnuplot from data files that stay beside them.
#include <string>
#include <vector>

#include "checkpoint.h"

namespace gpt {

/// Training and validation loss over steps.
void plot_loss(const std::vector<Progress>& history, const std::string& png);
/// The learned bias of every head over the distance, one panel for each layer.
void plot_bias(const Config& config, const std::vector<float>& parameters, const std::string& png);

}  // namespace gpt
