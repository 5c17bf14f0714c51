#include "files/npz.h"

#include <zlib.h>

#include <cstring>
#include <limits>

#include "base/check.h"
#include "files/npy.h"

namespace foveal::cli {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50;
constexpr std::uint32_t end64_mark = 0x06064b50, locator64_mark = 0x07064b50;
constexpr std::size_t local_size = 30, entry_size = 46, end_size = 22, end64_size = 56, locator64_size = 20;
constexpr std::uint32_t in_zip64 = 0xffffffff;
constexpr std::uint64_t most_inflation = 1032;  // bytes that a deflated one can give

struct Entry {
  std::string name;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0, size = 0, offset = 0;
};

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  std::vector<Entry> entries() const {
    FOVEAL_CHECK(file_.size() >= end_size, source_, ": too short for an .npz archive");
    std::size_t end = file_.size() - end_size;
    while (get<std::uint32_t>(end) != end_mark) {
      FOVEAL_CHECK(end > 0 && file_.size() - end < 70000, source_, ": no .npz archive, or its end is missing");
      --end;
    }
    std::uint64_t count = get<std::uint16_t>(end + 10), at = get<std::uint32_t>(end + 16);
    if (at == in_zip64 && end >= locator64_size && get<std::uint32_t>(end - locator64_size) == locator64_mark) {
      const auto end64 = get<std::uint64_t>(end - locator64_size + 8);
      FOVEAL_CHECK(fits(end64, end64_size) && get<std::uint32_t>(end64) == end64_mark, source_, ": the archive's directory is damaged");
      count = get<std::uint64_t>(end64 + 32);
      at = get<std::uint64_t>(end64 + 48);
    }
    std::vector<Entry> result;
    for (std::uint64_t i = 0; i < count; ++i) {
      FOVEAL_CHECK(fits(at, entry_size) && get<std::uint32_t>(at) == entry_mark, source_, ": the archive's directory is damaged");
      const auto name_size = get<std::uint16_t>(at + 28), extra_size = get<std::uint16_t>(at + 30),
                 comment_size = get<std::uint16_t>(at + 32);
      FOVEAL_CHECK(fits(at, entry_size + name_size + extra_size + comment_size), source_, ": the archive's directory is damaged");
      Entry entry{.name = std::string(reinterpret_cast<const char*>(file_.data() + at + entry_size), name_size),
                  .method = get<std::uint16_t>(at + 10),
                  .crc = get<std::uint32_t>(at + 16),
                  .packed = get<std::uint32_t>(at + 20),
                  .size = get<std::uint32_t>(at + 24),
                  .offset = get<std::uint32_t>(at + 42)};
      read_zip64(entry, at + entry_size + name_size, extra_size);
      result.push_back(std::move(entry));
      at += entry_size + name_size + extra_size + comment_size;
    }
    return result;
  }

  std::vector<std::byte> unpack(const Entry& entry) const {
    FOVEAL_CHECK(fits(entry.offset, local_size) && get<std::uint32_t>(entry.offset) == local_mark, source_, ": '", entry.name,
                 "' is damaged");
    const std::uint64_t begin = entry.offset + local_size + get<std::uint16_t>(entry.offset + 26) + get<std::uint16_t>(entry.offset + 28);
    FOVEAL_CHECK(fits(begin, entry.packed), source_, ": '", entry.name, "' reaches beyond the end of the file");
    const auto packed = file_.subspan(begin, entry.packed);
    std::vector<std::byte> bytes;
    if (entry.method == 0) {
      bytes.assign(packed.begin(), packed.end());
    } else {
      FOVEAL_CHECK(entry.method == 8, source_, ": '", entry.name, "' is packed by method ", entry.method, "; expected stored or deflated");
      inflate_into(bytes, packed, entry);
    }
    FOVEAL_CHECK(bytes.size() == entry.size && checksum(bytes) == entry.crc, source_, ": '", entry.name,
                 "' is damaged: its checksum differs");
    return bytes;
  }

  static std::uint32_t checksum(std::span<const std::byte> bytes) {
    return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  }

 private:
  bool fits(std::uint64_t at, std::uint64_t size) const { return at <= file_.size() && size <= file_.size() - at; }

  template <class T>
  T get(std::uint64_t at) const {
    T value;
    std::memcpy(&value, file_.data() + at, sizeof value);
    return value;
  }

  // Sizes that do not fit 32 bits stand in an extra field, in this order, and only those that were marked.
  void read_zip64(Entry& entry, std::uint64_t at, std::uint64_t size) const {
    const std::uint64_t end = at + size;
    while (at + 4 <= end) {
      const auto kind = get<std::uint16_t>(at), length = get<std::uint16_t>(at + 2);
      std::uint64_t value = at + 4;
      const std::uint64_t value_end = std::min<std::uint64_t>(value + length, end);
      for (std::uint64_t* field : {&entry.size, &entry.packed, &entry.offset}) {
        if (kind != 1 || *field != in_zip64 || value + 8 > value_end) continue;
        *field = get<std::uint64_t>(value);
        value += 8;
      }
      at += 4 + length;
    }
  }

  void inflate_into(std::vector<std::byte>& bytes, std::span<const std::byte> packed, const Entry& entry) const {
    // A size beyond that is a lie, found before any memory is asked for.
    FOVEAL_CHECK(entry.size / most_inflation <= packed.size(), source_, ": '", entry.name, "' is damaged: it promises ", entry.size,
                 " bytes");
    bytes.resize(entry.size);
    z_stream stream{};
    const bool ready = inflateInit2(&stream, -MAX_WBITS) == Z_OK;
    int status = ready ? Z_OK : Z_MEM_ERROR;
    std::size_t taken = 0, given = 0;
    constexpr std::size_t chunk = std::size_t{1} << 30;  // zlib counts in 32 bits
    while (status == Z_OK) {
      const std::size_t in = std::min(chunk, packed.size() - taken), out = std::min(chunk, bytes.size() - given);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + taken));
      stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + given);
      stream.avail_in = static_cast<uInt>(in);
      stream.avail_out = static_cast<uInt>(out);
      status = inflate(&stream, Z_NO_FLUSH);
      taken += in - stream.avail_in;
      given += out - stream.avail_out;
      if (status == Z_OK && in == stream.avail_in && out == stream.avail_out) status = Z_BUF_ERROR;
    }
    if (ready) inflateEnd(&stream);
    FOVEAL_CHECK(status == Z_STREAM_END && given == bytes.size(), source_, ": '", entry.name, "' is damaged: it does not inflate");
  }

  std::span<const std::byte> file_;
  const std::string& source_;
};

class Writer {
 public:
  void add(const Entry& entry, std::span<const std::byte> data) {
    entries_.push_back(entry);
    entries_.back().offset = bytes_.size();
    put(local_mark);
    common(entry);
    text(entry.name);
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }

  std::vector<std::byte> finish() {
    const std::size_t directory = bytes_.size();
    for (const Entry& entry : entries_) {
      put(entry_mark);
      put<std::uint16_t>(version);
      common(entry);
      put<std::uint16_t>(0);  // comment
      put<std::uint16_t>(0);  // disk
      put<std::uint16_t>(0);  // attributes
      put<std::uint32_t>(0);
      put(static_cast<std::uint32_t>(entry.offset));
      text(entry.name);
    }
    const std::size_t size = bytes_.size() - directory;
    FOVEAL_CHECK(bytes_.size() < std::numeric_limits<std::uint32_t>::max(), "output: ", bytes_.size(),
                 " bytes are too many for an .npz file; expected less than 4 GiB: write .safetensors instead");
    put(end_mark);
    put<std::uint32_t>(0);  // disks
    put(static_cast<std::uint16_t>(entries_.size()));
    put(static_cast<std::uint16_t>(entries_.size()));
    put(static_cast<std::uint32_t>(size));
    put(static_cast<std::uint32_t>(directory));
    put<std::uint16_t>(0);  // comment
    return std::move(bytes_);
  }

 private:
  static constexpr std::uint16_t version = 20;

  template <class T>
  void put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  void text(const std::string& name) {
    const auto* from = reinterpret_cast<const std::byte*>(name.data());
    bytes_.insert(bytes_.end(), from, from + name.size());
  }
  // What a local header and a directory entry share.
  void common(const Entry& entry) {
    put<std::uint16_t>(version);
    put<std::uint16_t>(0);         // flags
    put<std::uint16_t>(0);         // stored
    put<std::uint32_t>(0x210000);  // 1980-01-01: the same bytes for the same tensors
    put(entry.crc);
    put(static_cast<std::uint32_t>(entry.size));
    put(static_cast<std::uint32_t>(entry.size));
    put(static_cast<std::uint16_t>(entry.name.size()));
    put<std::uint16_t>(0);  // extra
  }

  std::vector<std::byte> bytes_;
  std::vector<Entry> entries_;
};

}  // namespace

std::vector<Tensor> parse_npz(std::span<const std::byte> file, const std::string& source) {
  const Archive archive(file, source);
  std::vector<Tensor> tensors;
  const std::vector<Entry> entries = archive.entries();
  std::uint64_t inflated = 0;  // entries that share their packed bytes would ask for more memory than any honest archive of this size
  for (const Entry& entry : entries) {
    FOVEAL_CHECK(!__builtin_add_overflow(inflated, entry.size, &inflated) && inflated / most_inflation <= file.size(), source,
                 ": the archive is damaged: its entries promise more bytes than it can hold");
  }
  for (const Entry& entry : entries) {
    constexpr std::string_view suffix = ".npy";
    FOVEAL_CHECK(entry.name.ends_with(suffix), source, ": holds '", entry.name, "'; expected only .npy files");
    Tensor tensor = parse_npy(archive.unpack(entry), source + ": '" + entry.name + "'");
    tensor.name = entry.name.substr(0, entry.name.size() - suffix.size());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<std::byte> format_npz(const std::vector<Tensor>& tensors) {
  Writer writer;
  for (const Tensor& tensor : tensors) {
    const std::vector<std::byte> data = format_npy(tensor);
    writer.add({.name = tensor.name + ".npy", .crc = Archive::checksum(data), .size = data.size()}, data);
  }
  return writer.finish();
}

}  // namespace foveal::cli
