#pragma once
// Checks of option values, on their text: conversions of CLI11 wrap, saturate or pass what is no number.
#include <CLI/CLI.hpp>
#include <cstdint>

namespace foveal::cli {

/// A whole number from `low` to `high`, in digits.
CLI::Validator whole_number(std::uint64_t low = 0, std::uint64_t high = UINT64_MAX);
/// Some text: an empty one would count as an option that was not given.
CLI::Validator not_empty();
/// A finite number of at least 0.
CLI::Validator not_negative();
/// A finite number above 0.
CLI::Validator positive();

}  // namespace foveal::cli
