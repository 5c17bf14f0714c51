#include "files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace foveal::cli {

using Json = nlohmann::json;

std::vector<Tensor> parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  std::uint64_t length = 0;
  FOVEAL_CHECK(file.size() >= sizeof length, source, ": too short for a safetensors file");
  std::memcpy(&length, file.data(), sizeof length);
  FOVEAL_CHECK(length <= file.size() - sizeof length, source, ": the file ends inside the safetensors header");
  const auto* text = reinterpret_cast<const char*>(file.data() + sizeof length);
  const auto data = file.subspan(sizeof length + length);
  const Json header = Json::parse(text, text + length, nullptr, false);
  FOVEAL_CHECK(header.is_object(), source, ": the safetensors header is no JSON object");
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string what = base::join(source, ": '", name, "'");
    try {
      const auto spelling = entry.at("dtype").get<std::string>();
      const auto found = std::ranges::find(dtype_names(), spelling, [](const DTypeName& row) { return std::string(row.safetensors); });
      FOVEAL_CHECK(found != dtype_names().end(), what, ": dtype ", spelling,
                   "; expected F64, F32, BF16, F16, I64, I32, I16, I8, U8 or BOOL");
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::array<std::uint64_t, 2>>();
      const std::uint64_t expected = tensor_bytes(what, found->dtype, shape);
      FOVEAL_CHECK(offsets[0] <= offsets[1] && offsets[1] <= data.size(), what, ": reaches beyond the end of the file");
      FOVEAL_CHECK(offsets[1] - offsets[0] == expected, what, ": ", offsets[1] - offsets[0], " bytes of data; its shape needs ", expected);
      const auto bytes = data.subspan(offsets[0], expected);
      tensors.push_back({name, found->dtype, shape, {bytes.begin(), bytes.end()}});
    } catch (const Json::exception& error) {
      base::fail(ErrorCode::invalid_argument, what, ": the safetensors header is damaged: ", error.what());
    }
  }
  return tensors;
}

std::vector<std::byte> format_safetensors(const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const auto name = std::ranges::find(dtype_names(), tensor.dtype, &DTypeName::dtype);
    header[tensor.name] = {{"dtype", name->safetensors}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin at a multiple of 8
  const std::uint64_t length = text.size();
  std::vector<std::byte> file(sizeof length + text.size());
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, text.data(), text.size());
  for (const Tensor& tensor : tensors) file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  return file;
}

}  // namespace foveal::cli
