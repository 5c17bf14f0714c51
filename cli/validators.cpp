#include "validators.h"

#include <charconv>
#include <cmath>

#include "base/check.h"

namespace foveal::cli {
namespace {

template <class Number>
bool read(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

CLI::Validator finite(bool (*takes)(double), const char* expected) {
  const auto check = [takes, expected](std::string& text) {
    double value = 0;
    if (read(text, value) && std::isfinite(value) && takes(value)) return std::string();
    return base::join("'", text, "'; expected a finite number ", expected);
  };
  return {check, ""};
}

}  // namespace

CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  const auto check = [low, high](std::string& text) {
    std::uint64_t value = 0;
    if (read(text, value) && value >= low && value <= high) return std::string();
    return base::join("'", text, "'; expected a whole number from ", low, " to ", high);
  };
  return {check, ""};
}

CLI::Validator not_empty() {
  const auto check = [](std::string& text) { return text.empty() ? std::string("''; expected a text that is not empty") : std::string(); };
  return {check, ""};
}

CLI::Validator not_negative() {
  return finite([](double value) { return value >= 0; }, "of at least 0");
}

CLI::Validator positive() {
  return finite([](double value) { return value > 0; }, "above 0");
}

}  // namespace foveal::cli
