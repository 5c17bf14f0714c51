// In place of a fuzzer: a target on the files and folders that are named, every prefix of each included.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t files = 0;
  const auto replay = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
    const std::size_t step = bytes.size() / 4096 + 1;
    for (std::size_t size = 0; size <= bytes.size(); size += step) {
      const std::vector<std::uint8_t> prefix(bytes.begin(),
                                             bytes.begin() + static_cast<std::ptrdiff_t>(size));  // ends where its memory ends
      LLVMFuzzerTestOneInput(prefix.data(), prefix.size());
    }
    const std::vector<std::uint8_t> whole(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(whole.data(), whole.size());
    ++files;
  };
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      replay(argv[i]);
      continue;
    }
    for (const auto& item : std::filesystem::directory_iterator(argv[i])) replay(item.path());
  }
  std::printf("%zu files\n", files);
  return files > 0 ? 0 : 1;
}
