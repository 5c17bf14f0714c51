// The kernel cache: entries are whole or not there, foreign and corrupt ones are compiled again, processes may race.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cuda/jit/compile.h"
#include "cuda/jit/sha256.h"
#include "foveal/error.h"
#include "nvrtc_here.h"
#include "own_folder.h"

namespace foveal::cuda::jit {
namespace {

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string(1000, 'a')), "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

Image image_of(const std::string& key) {
  Image image{.key = key, .stem = "stem", .entry = "entry", .arch = "sm_80", .facts = {}, .bytes = {}};
  image.facts.registers = 42;
  for (int i = 0; i < 5000; ++i) image.bytes.push_back(static_cast<char>(i * 7));
  return image;
}

class Cache : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = own_.path() / "cache";
    before_ = cache_folder();
    set_cache_folder(folder_.string());
  }
  void TearDown() override { set_cache_folder(before_); }
  std::filesystem::path file(const std::string& key) const { return folder_ / (key + ".kernel"); }

  test::OwnFolder own_;
  std::filesystem::path folder_;
  std::string before_;
};

TEST_F(Cache, ReadsWhatItWrote) {
  EXPECT_FALSE(cache_read("k1"));
  cache_write(image_of("k1"));
  const auto image = cache_read("k1");
  ASSERT_TRUE(image);
  EXPECT_EQ(image->bytes, image_of("k1").bytes);
  EXPECT_EQ(image->facts.registers, 42);
  ASSERT_EQ(cache_list().size(), 1u);
  EXPECT_EQ(cache_list()[0].stem, "stem");
  EXPECT_EQ(cache_clear(), 1);
  EXPECT_FALSE(cache_read("k1"));
}

TEST_F(Cache, NeverTrustsADamagedEntry) {
  cache_write(image_of("k1"));
  std::string whole;
  {
    std::ifstream in(file("k1"), std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto put = [&](const std::string& text) { std::ofstream(file("k1"), std::ios::binary) << text; };
  for (std::size_t at = 0; at < whole.size(); at += 97) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    put(flipped);
    EXPECT_FALSE(cache_read("k1")) << "bit flipped at byte " << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, whole.size() / 2, whole.size() - 1}) {
    put(whole.substr(0, size));
    EXPECT_FALSE(cache_read("k1")) << "cut at byte " << size;
  }
  std::filesystem::copy_file(file("k1"), file("k2"));
  put(whole);
  EXPECT_TRUE(cache_read("k1"));
  std::filesystem::copy_file(file("k1"), file("k3"));
  EXPECT_FALSE(cache_read("k3")) << "an entry under another key";
}

TEST_F(Cache, ManyProcessesWriteOneEntry) {
  std::vector<pid_t> children;
  for (int c = 0; c < 8; ++c) {
    const pid_t child = fork();
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 50; ++i) {
        cache_write(image_of("shared"));
        const auto image = cache_read("shared");
        good = good && image && image->bytes == image_of("shared").bytes;
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& item : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1u) << "nothing is left beside the entry";
}

TEST_F(Cache, AFolderThatCannotBeWrittenIsNoError) {
  set_cache_folder("/proc/no-such-folder");
  cache_write(image_of("k1"));
  EXPECT_FALSE(cache_read("k1"));
  set_cache_folder("");
  cache_write(image_of("k1"));
  EXPECT_FALSE(cache_read("k1"));
}

class Compiling : public test::NeedsNvrtc {};

KernelSource zeros(const std::string& arch, int value) {
  KernelSource source{.stem = "param_gradient", .entry = "param_gradient", .constants = {}, .score = {}, .arch = arch};
  source.constants.set_type("Gradient", "float").set_type("Value", "float").set("kBinBits", value);
  return source;
}

TEST_F(Compiling, OneImageForOneSource) {
  const auto first = compile(zeros("sm_80", 8)), again = compile(zeros("sm_80", 8));
  EXPECT_EQ(first, again);
  EXPECT_NE(first->key, compile(zeros("sm_80", 16))->key);
  EXPECT_NE(first->key, compile(zeros("sm_90a", 8))->key);
  EXPECT_GT(first->facts.registers, 0);
}

TEST_F(Compiling, ErrorsCarryTheLog) {
  KernelSource source = zeros("sm_80", 8);
  source.constants.set_type("Broken", "NoSuchType");
  try {
    compile(source);
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::compile_failed);
    EXPECT_NE(std::string(error.what()).find("NoSuchType"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("config.cuh"), std::string::npos) << error.what();
  }
}

TEST_F(Compiling, PtxForAnArchitectureWithoutMachineCode) {
  EXPECT_EQ(arch_of(9, 0), "sm_90a");
  EXPECT_EQ(arch_of(8, 0), "sm_80");
  EXPECT_EQ(arch_of(99, 0).rfind("compute_", 0), 0u);
  const auto image = compile(zeros("compute_80", 8));
  EXPECT_NE(image->bytes.find(".target sm_80"), std::string::npos);
}

TEST(Source, IncludesAreReplacedOnce) {
  const std::string text = assemble(zeros("sm_80", 8));
  EXPECT_EQ(text.find("#include"), std::string::npos);
  EXPECT_EQ(text.find("#pragma once"), std::string::npos);
  EXPECT_NE(text.find("constexpr int kBinBits = 8;"), std::string::npos);
  KernelSource unknown = zeros("sm_80", 8);
  unknown.stem = "no_such_kernel";
  EXPECT_THROW(assemble(unknown), Error);
}

TEST(Source, EveryEmbeddedFileIncludesOnlyDeviceFiles) {
  for (const std::string_view path : embedded_files()) {
    EXPECT_EQ(embedded_file(path).find("#include <"), std::string_view::npos) << path << " includes a header of the system";
  }
}

}  // namespace
}  // namespace foveal::cuda::jit
