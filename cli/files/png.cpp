#include "files/png.h"

#include <zlib.h>

#include <new>
#include <string>

namespace foveal::cli {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(value >> shift & 0xff));
  return text;
}

/// Length, type, data, and the checksum of the latter two.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + checked + big_endian(static_cast<std::uint32_t>(sum));
}

std::string compressed(const std::string& data) {
  uLongf size = compressBound(static_cast<uLong>(data.size()));
  std::string out(size, '\0');
  const int status =
      compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(data.data()), static_cast<uLong>(data.size()));
  if (status != Z_OK) throw std::bad_alloc();  // there is nothing else that it may lack
  out.resize(size);
  return out;
}

}  // namespace

std::vector<std::byte> to_png(const Image& image) {
  std::string rows;
  for (int y = 0; y < image.height(); ++y) {
    rows.push_back('\0');  // filter: none
    for (int x = 0; x < image.width(); ++x)
      for (const std::uint8_t part : {image.at(x, y).red, image.at(x, y).green, image.at(x, y).blue})
        rows.push_back(static_cast<char>(part));
  }
  const std::string header = big_endian(static_cast<std::uint32_t>(image.width())) +
                             big_endian(static_cast<std::uint32_t>(image.height())) +
                             std::string{8, 2, 0, 0, 0};  // bits of a part; red, green, blue; compression, filters, no interlacing
  const std::string file = "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", compressed(rows)) + chunk("IEND", "");
  std::vector<std::byte> bytes;
  bytes.reserve(file.size());
  for (const char c : file) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

}  // namespace foveal::cli
