#include "files/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace foveal::cli {
namespace {

constexpr std::string_view magic = "\x93NUMPY";

struct Header {
  DType dtype;
  bool fortran_order;
  std::vector<std::int64_t> shape;
};

// The header is a Python dictionary of three known keys. This reads what NumPy writes, and nothing else of Python.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Header read() {
    std::optional<std::string_view> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        descr = string();
      } else if (key == "fortran_order") {
        fortran_order = boolean();
      } else if (key == "shape") {
        shape = tuple();
      } else {
        fail_at("an unknown key");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    FOVEAL_CHECK(descr && fortran_order && shape, source_, ": the .npy header lacks descr, fortran_order or shape");
    return {dtype(*descr), *fortran_order, std::move(*shape)};
  }

 private:
  [[noreturn]] void fail_at(const char* found) const {
    base::fail(ErrorCode::invalid_argument, source_, ": .npy header, column ", at_ + 1, ": ", found, " in ", text_.substr(0, 200));
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail_at("something else than the expected punctuation");
  }
  std::string_view string() {
    expect('\'');
    const std::size_t begin = at_, end = text_.find('\'', begin);
    if (end == std::string_view::npos) fail_at("a string without an end");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  bool boolean() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    fail_at("neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error != std::errc()) fail_at("no integer");
      at_ = static_cast<std::size_t>(end - text_.data());
      values.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }
  DType dtype(std::string_view descr) const {
    FOVEAL_CHECK(!descr.starts_with('>'), source_, ": big-endian type '", descr, "'; expected little-endian");
    const std::string_view type = descr.find_first_of("<|=") == 0 ? descr.substr(1) : descr;
    const auto found = std::ranges::find(dtype_names(), type, [](const DTypeName& name) { return std::string_view(name.npy); });
    FOVEAL_CHECK(found != dtype_names().end(), source_, ": type '", descr, "'; expected f2, f4, f8, V2 (bf16), b1, u1 or i1, i2, i4, i8");
    return found->dtype;
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t at_ = 0;
};

// Column-major to row-major.
void reorder(Tensor& tensor) {
  const std::size_t width = size_of(tensor.dtype), rank = tensor.shape.size(), count = tensor.bytes.size() / width;
  std::vector<std::byte> result(tensor.bytes.size());
  std::vector<std::int64_t> index(rank, 0);
  for (std::size_t target = 0; target < count; ++target) {
    std::size_t source = 0;
    for (std::size_t i = rank; i-- > 0;) source = source * static_cast<std::size_t>(tensor.shape[i]) + static_cast<std::size_t>(index[i]);
    std::memcpy(result.data() + target * width, tensor.bytes.data() + source * width, width);
    for (std::size_t i = rank; i-- > 0 && ++index[i] == tensor.shape[i];) index[i] = 0;
  }
  tensor.bytes = std::move(result);
}

}  // namespace

Tensor parse_npy(std::span<const std::byte> file, const std::string& source) {
  const auto text = std::string_view(reinterpret_cast<const char*>(file.data()), file.size());
  FOVEAL_CHECK(text.starts_with(magic) && text.size() >= 10, source, ": no .npy file: it does not begin with NumPy's mark");
  const int version = static_cast<unsigned char>(text[6]);
  FOVEAL_CHECK(version >= 1 && version <= 3, source, ": .npy version ", version, "; expected 1, 2 or 3");
  const std::size_t length_bytes = version == 1 ? 2 : 4, header_begin = 8 + length_bytes;
  std::uint32_t length = 0;
  FOVEAL_CHECK(text.size() >= header_begin, source, ": the file ends inside the .npy header");
  std::memcpy(&length, text.data() + 8, length_bytes);
  FOVEAL_CHECK(length <= text.size() - header_begin, source, ": the file ends inside the .npy header");
  Header header = HeaderReader(text.substr(header_begin, length), source).read();
  const std::uint64_t expected = tensor_bytes(source, header.dtype, header.shape);
  const auto data = file.subspan(header_begin + length);
  FOVEAL_CHECK(data.size() == expected, source, ": ", data.size(), " bytes of data; its header promises ", expected);
  Tensor tensor{source, header.dtype, std::move(header.shape), {data.begin(), data.end()}};
  if (header.fortran_order && tensor.shape.size() > 1) reorder(tensor);
  return tensor;
}

std::vector<std::byte> format_npy(const Tensor& tensor) {
  const auto name = std::ranges::find(dtype_names(), tensor.dtype, &DTypeName::dtype);
  std::string header =
      std::string("{'descr': '") + (size_of(tensor.dtype) == 1 ? "|" : "<") + name->npy + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : tensor.shape) header += std::to_string(size) + ",";
  header += "), }";
  constexpr std::size_t prefix = 10, alignment = 64;
  header.append(alignment - (prefix + header.size() + 1) % alignment, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());
  std::vector<std::byte> file(prefix + header.size() + tensor.bytes.size());
  std::memcpy(file.data(), magic.data(), magic.size());
  file[6] = std::byte{1};
  std::memcpy(file.data() + 8, &length, sizeof length);
  std::memcpy(file.data() + prefix, header.data(), header.size());
  std::copy(tensor.bytes.begin(), tensor.bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(prefix + header.size()));
  return file;
}

}  // namespace foveal::cli
