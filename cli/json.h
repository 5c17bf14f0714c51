#pragma once
// The JSON forms that several subcommands print.
#include <nlohmann/json.hpp>
#include <string>

#include "foveal/attention.h"

namespace foveal::cli {

using Json = nlohmann::ordered_json;

Json to_json(const Explanation& explanation);

/// Written beside its place and renamed. Throws invalid_argument when it cannot be.
void write_json(const Json& json, const std::string& path);

}  // namespace foveal::cli
