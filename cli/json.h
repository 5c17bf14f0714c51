#pragma once
// The JSON forms that several subcommands print.
#include <nlohmann/json.hpp>
#include <string>

#include "foveal/attention.h"

namespace foveal::cli {

using Json = nlohmann::ordered_json;

Json to_json(const Explanation& explanation);

/// Written to a temporary file and renamed. Throws invalid_argument if that fails.
void write_json(const Json& json, const std::string& path);

}  // namespace foveal::cli
