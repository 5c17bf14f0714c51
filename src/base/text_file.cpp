#include "base/text_file.h"

#include <algorithm>
#include <fstream>

#include "base/check.h"

namespace foveal::base {

std::vector<std::string> read_text_lines(const std::string& path, const std::string& name, const std::string& expected) {
  std::ifstream file(path, std::ios::binary);
  FOVEAL_CHECK(file, name, ": cannot be opened; expected ", expected);
  std::string text;
  for (char piece[1 << 14]; file.read(piece, sizeof piece), file.gcount() > 0;) {
    text.append(piece, static_cast<std::size_t>(file.gcount()));
    FOVEAL_CHECK(text.size() <= most_text_bytes, name, ": more than ", most_text_bytes, " bytes; expected ", expected);
  }
  FOVEAL_CHECK(file.eof() && !file.bad(), name, ": cannot be read (a folder?); expected ", expected);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace foveal::base
