#include "checkpoint.h"

#include <fmt/core.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <type_traits>

namespace gpt {
namespace {

constexpr char magic[8] = {'F', 'O', 'V', 'E', 'A', 'L', 'G', '1'};

template <class T>
void put(std::ofstream& file, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void put(std::ofstream& file, const std::vector<T>& values) {
  put(file, static_cast<std::uint64_t>(values.size()));
  for (const T& value : values) put(file, value);
}
void put(std::ofstream& file, const std::vector<float>& values) {
  put(file, static_cast<std::uint64_t>(values.size()));
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary), left_(0) {
    if (!file_) throw std::runtime_error(fmt::format("checkpoint: cannot open '{}'", path));
    left_ = std::filesystem::file_size(path);
  }
  void bytes(void* to, std::uint64_t size) {
    if (size > left_ || !file_.read(static_cast<char*>(to), static_cast<std::streamsize>(size))) {
      throw std::runtime_error(fmt::format("checkpoint: '{}' ends early", path_));
    }
    left_ -= size;
  }
  template <class T>
  void get(T& value) {
    bytes(&value, sizeof value);
  }
  template <class T>
  void get(std::vector<T>& values) {
    std::uint64_t size = 0;
    get(size);
    if (size > left_ / sizeof(T)) throw std::runtime_error(fmt::format("checkpoint: '{}' ends early", path_));
    values.resize(size);
    bytes(values.data(), size * sizeof(T));
  }

 private:
  std::string path_;
  std::ifstream file_;
  std::uint64_t left_;
};

}  // namespace

void save(const Checkpoint& c, const std::string& path) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary);
    file.write(magic, sizeof magic);
    put(file, c.config);
    put(file, c.seed);
    put(file, c.step);
    put(file, c.merges);
    put(file, c.history);
    put(file, c.parameters);
    put(file, c.mean);
    put(file, c.square);
    if (!file.flush()) throw std::runtime_error(fmt::format("checkpoint: cannot write '{}'", fresh));
  }
  std::filesystem::rename(fresh, path);
}

Checkpoint load_checkpoint(const std::string& path) {
  Reader reader(path);
  char found[sizeof magic];
  reader.bytes(found, sizeof found);
  if (std::memcmp(found, magic, sizeof magic) != 0)
    throw std::runtime_error(fmt::format("checkpoint: '{}' is not one of this program", path));
  Checkpoint c;
  reader.get(c.config);
  reader.get(c.seed);
  reader.get(c.step);
  reader.get(c.merges);
  reader.get(c.history);
  reader.get(c.parameters);
  reader.get(c.mean);
  reader.get(c.square);
  c.config.validate();
  const auto expected = static_cast<std::size_t>(count_parameters(c.config));
  if (c.parameters.size() != expected || c.mean.size() != expected || c.square.size() != expected) {
    throw std::runtime_error(fmt::format("checkpoint: '{}' holds {} parameters; its model has {}", path, c.parameters.size(), expected));
  }
  return c;
}

}  // namespace gpt
