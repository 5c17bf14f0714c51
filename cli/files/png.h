#pragma once
// Pictures as PNG files (ISO/IEC 15948): eight bits of red, green and blue.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace foveal::cli {

struct Pixel {
  std::uint8_t red, green, blue;
};

class Image {
 public:
  Image(int width, int height, Pixel fill)
      : width_(width), height_(height), pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), fill) {}
  int width() const { return width_; }
  int height() const { return height_; }
  Pixel& at(int x, int y) { return pixels_[index(x, y)]; }
  const Pixel& at(int x, int y) const { return pixels_[index(x, y)]; }

 private:
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x);
  }

  int width_, height_;
  std::vector<Pixel> pixels_;
};

std::vector<std::byte> to_png(const Image& image);

}  // namespace foveal::cli
