// The kernel cache: entries are whole or not there, foreign and corrupt ones are compiled again, processes may race.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "cuda/device/param_gradient_args.cuh"
#include "cuda/jit/compile.h"
#include "cuda/jit/disk_cache.h"
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
  Image image{.key = key, .stem = "stem", .arch = "sm_80", .facts = {}, .bytes = {}};
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
  std::filesystem::resize_file(file("k1"), std::uintmax_t{1} << 40);
  EXPECT_FALSE(cache_read("k1")) << "a file of 1 TiB";
}

TEST_F(Cache, ManyProcessesWriteOneEntry) {
  std::vector<pid_t> children;
  for (int c = 0; c < 32; ++c) {
    const pid_t child = fork();
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < 12; ++i) {
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

/// What fn returns, in a process of its own; 200 for an error.
pid_t forked(const std::function<int()>& fn) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    _exit(fn());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(200);
  }
}
int result_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
double seconds_of(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(Cache, OneProcessAtATimeHasTheTurn) {
  const std::string inside = own_ / "inside";
  std::vector<pid_t> children;
  for (int c = 0; c < 16; ++c)
    children.push_back(forked([&] {
      for (int i = 0; i < 20; ++i) {
        const CompileTurn turn("shared");
        if (mkdir(inside.c_str(), 0700) != 0) return 1;  // another is in here
        if (rmdir(inside.c_str()) != 0) return 2;
      }
      return 0;
    }));
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "nothing is left";
}

TEST_F(Cache, NobodyWaitsForAProcessThatDiedNorForOneThatNeverEnds) {
  for (const bool dies : {true, false}) {
    int begun[2];
    ASSERT_EQ(pipe(begun), 0);
    const pid_t child = forked([&] {
      const CompileTurn turn("k1");
      if (write(begun[1], "!", 1) != 1) return 1;
      pause();
      return 0;
    });
    char mark = 0;
    ASSERT_EQ(read(begun[0], &mark, 1), 1);
    if (dies) {
      kill(child, SIGKILL);
      result_of(child);
      EXPECT_TRUE(std::filesystem::exists(folder_ / "k1.kernel.lock"));
      EXPECT_LT(seconds_of([] { CompileTurn("k1", std::chrono::minutes(1)); }), 20);
    } else {
      const double waited = seconds_of([] { CompileTurn("k1", std::chrono::milliseconds(300)); });
      EXPECT_GE(waited, 0.3);
      EXPECT_LT(waited, 20);
      EXPECT_LT(seconds_of([] { CompileTurn("k2", std::chrono::minutes(1)); }), 20) << "another kernel";
      kill(child, SIGKILL);
      result_of(child);
      EXPECT_EQ(cache_clear(), 1) << "the lock that was left";
    }
    close(begun[0]), close(begun[1]);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(Cache, AChildOfAProcessDoesNotKeepItsTurn) {
  pid_t child = 0;
  {
    const CompileTurn turn("k1");
    child = forked([] { return pause(); });
  }
  EXPECT_LT(seconds_of([] { CompileTurn("k1", std::chrono::minutes(1)); }), 20);
  kill(child, SIGKILL);
  result_of(child);
}

TEST_F(Cache, WithoutAFolderThereIsNoTurn) {
  for (const char* folder : {"", "/dev/null/cache"}) {
    set_cache_folder(folder);
    const CompileTurn first("k1");
    EXPECT_LT(seconds_of([] { CompileTurn("k1", std::chrono::minutes(1)); }), 20) << folder;
  }
}

TEST_F(Cache, IsPrivate) {
  cache_write(image_of("k1"));
  struct stat status {};
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(file("k1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(cache_unusable(), "");
}

TEST_F(Cache, MayBeAnyFolderOfTheUsersWhichStaysAsItIs) {
  std::filesystem::create_directory(folder_);
  chmod(folder_.c_str(), 0755);
  constexpr const char* others[] = {"poetry.lock", "main.cu", "kernel.cu", "page.tmp", "kernel.1.2.tmp"};
  for (const char* name : others) {
    std::ofstream(folder_ / name) << "of the user";
    std::filesystem::last_write_time(folder_ / name, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1000));
  }
  for (int i = 0; i < 65; ++i) cache_write(image_of("k1"));  // old files are looked for at every 64th
  EXPECT_TRUE(cache_read("k1"));
  EXPECT_NE(cache_keep("stem.0123", "text"), "");
  EXPECT_EQ(cache_clear(), 2);
  struct stat status {};
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0755u);
  for (const char* name : others) EXPECT_TRUE(std::filesystem::exists(folder_ / name)) << name;
}

TEST_F(Cache, RefusesAFolderThatOthersCouldHaveWritten) {
  cache_write(image_of("k1"));
  chmod(folder_.c_str(), 0770);
  EXPECT_FALSE(cache_read("k1"));
  cache_write(image_of("k2"));
  EXPECT_FALSE(std::filesystem::exists(file("k2")));
  EXPECT_NE(cache_unusable().find("0700"), std::string::npos) << cache_unusable();
  EXPECT_TRUE(cache_list().empty());
  EXPECT_EQ(cache_clear(), 0);
  chmod(folder_.c_str(), 0700);
  EXPECT_TRUE(cache_read("k1"));
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(cache_read("k1"));
  EXPECT_NE(cache_unusable().find("65534"), std::string::npos) << cache_unusable();
  ASSERT_EQ(chown(folder_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(file("k1").c_str(), 65534, 65534), 0);
  EXPECT_FALSE(cache_read("k1")) << "an entry of another user";
}

TEST_F(Cache, RefusesLinksAndPipes) {
  cache_write(image_of("k1"));
  const auto link = own_.path() / "link";
  std::filesystem::create_directory_symlink(folder_, link);
  set_cache_folder(link.string());
  EXPECT_FALSE(cache_read("k1"));
  EXPECT_NE(cache_unusable().find("link"), std::string::npos) << cache_unusable();
  set_cache_folder(folder_.string());
  std::filesystem::create_symlink(file("k1"), file("k2"));
  std::filesystem::copy_file(file("k1"), own_.path() / "k3");
  EXPECT_FALSE(cache_read("k2"));
  ASSERT_EQ(mkfifo(file("k4").c_str(), 0600), 0);
  EXPECT_FALSE(cache_read("k4")) << "and does not wait for a writer";
}

TEST_F(Cache, AFileThatMayNotGrowIsNoError) {
  const auto whole = image_of("k1");
  cache_write(whole);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit small{1000, 1000};  // bytes of a file: every further write fails, as on a full disk
    setrlimit(RLIMIT_FSIZE, &small);
    cache_write(image_of("k2"));
    _exit(!cache_read("k2") && cache_read("k1") ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "and no signal";
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& item : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1u) << "nothing is left of the entry that had no room";
}

constexpr int not_allowed = 77;

/// check() in a process for which a disk of this size is mounted at the folder; skips where the system allows no such process.
void on_a_disk_of_its_own(const std::filesystem::path& folder, const char* size, const std::function<bool()>& check) {
  std::filesystem::create_directories(folder);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const uid_t user = geteuid();
    if (unshare(CLONE_NEWNS | (user == 0 ? 0 : CLONE_NEWUSER)) != 0) _exit(not_allowed);
    if (user != 0) std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1";
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(not_allowed);
    if (mount("tmpfs", folder.c_str(), "tmpfs", 0, (std::string("mode=0700,size=") + size).c_str()) != 0) _exit(not_allowed);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == not_allowed) GTEST_SKIP() << "no right to mount a disk";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST_F(Cache, ADiskWithoutRoomIsNoError) {
  on_a_disk_of_its_own(folder_, "32k", [&] {
    int kept = 0;
    for (int i = 0; i < 20; ++i) {
      const std::string key = "k" + std::to_string(i);
      cache_write(image_of(key));
      const auto image = cache_read(key);
      if (image && image->bytes != image_of(key).bytes) return false;
      kept += image ? 1 : 0;
    }
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& item : std::filesystem::directory_iterator(folder_)) ++files;
    const bool full = kept > 0 && kept < 20 && files == static_cast<std::size_t>(kept);
    cache_clear();
    cache_write(image_of("again"));
    return full && cache_read("again");
  });
}

TEST_F(Cache, ADiskThatMayOnlyBeReadIsReadAndNoError) {
  on_a_disk_of_its_own(folder_, "1m", [&] {
    cache_write(image_of("k1"));
    if (mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) _exit(not_allowed);
    cache_write(image_of("k2"));
    const auto image = cache_read("k1");
    return image && image->bytes == image_of("k1").bytes && !cache_read("k2") && cache_clear() == 0 && cache_read("k1");
  });
}

TEST_F(Cache, AFolderThatCannotBeMadeIsNoError) {
  set_cache_folder("/proc/no-such-folder");
  cache_write(image_of("k1"));
  EXPECT_FALSE(cache_read("k1"));
  set_cache_folder("");
  cache_write(image_of("k1"));
  EXPECT_FALSE(cache_read("k1"));
}

class Compiling : public test::NeedsNvrtc {};

KernelSource zeros(const std::string& arch, int value) {
  KernelSource source{.stem = "param_gradient", .arch = arch};
  source.constants.set_type("Gradient", "float")
      .set_type("Value", "float")
      .set_struct("kConfig", "ParamGradientConfig", "param_gradient_args.cuh", device::ParamGradientConfig{.bin_bits = value});
  return source;
}

TEST_F(Compiling, OneImageForOneSource) {
  const auto first = compile(zeros("sm_80", 8)), again = compile(zeros("sm_80", 8));
  EXPECT_EQ(first, again);
  EXPECT_NE(first->key, compile(zeros("sm_80", 16))->key);
  EXPECT_NE(first->key, compile(zeros("sm_90a", 8))->key);
  EXPECT_GT(first->facts.registers, 0);
}

TEST_F(Compiling, ProcessesThatStartTogetherCompileAKernelOnce) {
  const test::OwnFolder own;
  const std::string before = cache_folder();
  set_cache_folder(own / "cache");
  int start[2];
  ASSERT_EQ(pipe(start), 0);
  std::vector<pid_t> children;
  for (int c = 0; c < 6; ++c)
    children.push_back(forked([&] {
      close(start[1]);
      char mark = 0;
      if (read(start[0], &mark, 1) != 0) return 100;  // until all are there
      const Compilations had = compilations();
      compile(zeros("sm_86", 8));
      const Compilations has = compilations();
      return (has.compiled - had.compiled) * 10 + has.read - had.read;
    }));
  close(start[0]), close(start[1]);
  int sum = 0;
  for (const pid_t child : children) sum += result_of(child);
  EXPECT_EQ(sum, 15) << "one compiled it, five read it";
  set_cache_folder(before);
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
  EXPECT_NE(text.find("ParamGradientConfig kConfig{.bin_bits = 8};"), std::string::npos);
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
