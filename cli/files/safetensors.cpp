#include "files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"

namespace foveal::cli {

using Json = nlohmann::json;

namespace {

/// JSON's numbers may have a fraction or not fit, which get() converts all the same.
std::vector<std::int64_t> integers(const Json& numbers, const std::string& what) {
  std::vector<std::int64_t> found;
  for (const Json& number : numbers.get<std::vector<Json>>()) {
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    FOVEAL_CHECK(number.is_number_integer() && (!number.is_number_unsigned() || number.get<std::uint64_t>() <= most), what, ": ",
                 number.dump(), "; expected an integer of 64 bits");
    found.push_back(number.get<std::int64_t>());
  }
  return found;
}

}  // namespace

std::vector<Tensor> parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  std::uint64_t length = 0;
  FOVEAL_CHECK(file.size() >= sizeof length, source, ": too short for a safetensors file");
  std::memcpy(&length, file.data(), sizeof length);
  FOVEAL_CHECK(length <= file.size() - sizeof length, source, ": the file ends inside the safetensors header");
  const auto* text = reinterpret_cast<const char*>(file.data() + sizeof length);
  const auto data = file.subspan(sizeof length + length);
  std::set<std::string> names;  // the parser keeps one of two equal names
  const auto check_names = [&](int depth, Json::parse_event_t event, const Json& name) {
    const bool is_name = depth == 1 && event == Json::parse_event_t::key;
    FOVEAL_CHECK(!is_name || names.insert(name.get<std::string>()).second, source, ": a second tensor named ", name.dump());
    return true;
  };
  const Json header = Json::parse(text, text + length, check_names, false);
  FOVEAL_CHECK(header.is_object(), source, ": the safetensors header is no JSON object");
  std::vector<Tensor> tensors;
  std::uint64_t promised = 0;  // tensors that share their bytes would ask for more memory than any honest file of this size
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string what = base::join(source, ": '", name, "'");
    try {
      const auto spelling = entry.at("dtype").get<std::string>();
      const auto found = std::ranges::find(dtype_names(), spelling, [](const DTypeName& row) { return std::string(row.safetensors); });
      FOVEAL_CHECK(found != dtype_names().end(), what, ": dtype ", spelling,
                   "; expected F64, F32, BF16, F16, I64, I32, I16, I8, U8 or BOOL");
      const std::vector<std::int64_t> shape = integers(entry.at("shape"), base::join(what, ": shape"));
      const std::vector<std::int64_t> offsets = integers(entry.at("data_offsets"), base::join(what, ": data_offsets"));
      FOVEAL_CHECK(offsets.size() == 2 && offsets[0] >= 0, what, ": data_offsets: expected the first byte and the one after the last");
      const std::uint64_t expected = tensor_bytes(what, found->dtype, shape);
      const auto begin = static_cast<std::uint64_t>(offsets[0]), end = static_cast<std::uint64_t>(offsets[1]);
      FOVEAL_CHECK(offsets[0] <= offsets[1] && end <= data.size(), what, ": reaches beyond the end of the file");
      FOVEAL_CHECK(end - begin == expected, what, ": ", end - begin, " bytes of data; its shape needs ", expected);
      promised += expected;  // each is at most the file's size
      FOVEAL_CHECK(promised <= data.size(), what, ": shares its bytes with other tensors; expected bytes of its own");
      const auto bytes = data.subspan(begin, expected);
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
