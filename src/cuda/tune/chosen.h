#pragma once
#include <string>

namespace foveal::cuda {

/// A configuration and why it was chosen: the row of a table, or a measurement of this device.
template <class Config>
struct Chosen {
  Config config;
  std::string why;
};

}  // namespace foveal::cuda
