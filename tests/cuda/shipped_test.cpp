// Kernels that come with the library: used where they are whole and trusted, and made of what plans of plain attention ask for.
#include "cuda/jit/shipped.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <set>

#include "base/check.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/image_file.h"
#include "cuda/kernels_of.h"
#include "cuda/plain_kernels.h"
#include "own_folder.h"
#include "problem/line_problem.h"

namespace foveal::cuda {
namespace {

using jit::shipped_kernels;
using jit::shipped_read;

constexpr unsigned somebody = 65534;

class Shipped : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    chmod(folder_.c_str(), 0755);
    put("compiler", "13.0 of a test\n");
    put("k1.kernel", encode(image_of("k1")));
    std::ofstream(library_) << "a library";
    chmod(library_.c_str(), 0755);
    jit::set_shipped_folder(folder_.string());
  }
  void TearDown() override { jit::set_shipped_folder(""); }

  static jit::Image image_of(const std::string& key) {
    return {.key = key, .stem = "stem", .arch = "sm_90a", .facts = {}, .bytes = std::string(3000, 'x')};
  }
  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name, std::ios::binary) << text; }
  /// Looks again.
  const jit::ShippedKernels& named() const { return jit::set_shipped_folder(folder_.string()), shipped_kernels(); }
  const jit::ShippedKernels& beside() const { return jit::set_shipped_folder(folder_.string(), library_.string()), shipped_kernels(); }

  test::OwnFolder own_;
  std::filesystem::path folder_ = own_.path() / jit::shipped_folder_name, library_ = own_.path() / "libfoveal.so";
};

TEST_F(Shipped, AreFound) {
  EXPECT_TRUE(shipped_kernels().usable()) << shipped_kernels().unusable;
  EXPECT_EQ(shipped_kernels().compiler, "13.0 of a test");
  EXPECT_EQ(shipped_kernels().count, 1);
  const auto image = shipped_read("k1");
  ASSERT_TRUE(image);
  EXPECT_EQ(image->bytes, image_of("k1").bytes);
  EXPECT_FALSE(shipped_read("k2"));
}

TEST_F(Shipped, MayBeNone) {
  jit::set_shipped_folder("");
  EXPECT_EQ(shipped_kernels().unusable, "FOVEAL_KERNELS_DIR is empty");
  EXPECT_FALSE(shipped_read("k1"));
  jit::set_shipped_folder((own_.path() / "nothing").string());
  EXPECT_NE(shipped_kernels().unusable.find("No such file"), std::string::npos) << shipped_kernels().unusable;
  jit::set_shipped_folder((own_.path() / "nothing").string(), library_.string());
  EXPECT_EQ(shipped_kernels().folder, "");
  EXPECT_EQ(shipped_kernels().unusable, "none came with this build");
  std::filesystem::remove(folder_ / "compiler");
  EXPECT_NE(named().unusable.find("compiler"), std::string::npos) << named().unusable;
  EXPECT_FALSE(shipped_read("k1"));
}

TEST_F(Shipped, AreNeverTakenDamaged) {
  const std::string whole = encode(image_of("k1"));
  for (std::size_t at = 0; at < whole.size(); at += 61) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    put("k1.kernel", flipped);
    EXPECT_FALSE(shipped_read("k1")) << "bit flipped at byte " << at;
  }
  put("k1.kernel", whole.substr(0, whole.size() - 1));
  EXPECT_FALSE(shipped_read("k1"));
  put("k2.kernel", whole);
  EXPECT_FALSE(shipped_read("k2")) << "an entry under another key";
  put("k1.kernel", whole);
  EXPECT_TRUE(shipped_read("k1"));
}

TEST_F(Shipped, AreNotTakenWhereOthersMayWrite) {
  for (const unsigned mode : {0775u, 0757u}) {
    chmod(folder_.c_str(), mode);
    EXPECT_EQ(named().unusable, "others may write into it");
    EXPECT_FALSE(shipped_read("k1"));
  }
  chmod(folder_.c_str(), 0755);
  EXPECT_TRUE(named().usable());
  chmod((folder_ / "k1.kernel").c_str(), 0664);
  EXPECT_FALSE(shipped_read("k1"));
  chmod((folder_ / "k1.kernel").c_str(), 0444);
  EXPECT_TRUE(shipped_read("k1"));
  ASSERT_EQ(mkfifo((folder_ / "k2.kernel").c_str(), 0600), 0);
  EXPECT_FALSE(shipped_read("k2")) << "and does not wait for a writer";
}

TEST_F(Shipped, BesideTheLibraryAreTrustedAsItIs) {
  chmod(folder_.c_str(), 0775);
  EXPECT_FALSE(beside().usable()) << "others may not write the library";
  chmod(library_.c_str(), 0775);
  EXPECT_TRUE(beside().usable()) << beside().unusable;
  chmod(folder_.c_str(), 0777);
  EXPECT_FALSE(beside().usable());
  chmod(folder_.c_str(), 0755);
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(folder_.c_str(), 0, somebody), 0);
  chmod(folder_.c_str(), 0775);
  EXPECT_FALSE(beside().usable()) << "another group than that which may write the library";
}

TEST_F(Shipped, OfStrangersAreNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  ASSERT_EQ(chown(folder_.c_str(), somebody, somebody), 0);
  EXPECT_EQ(named().unusable, "it belongs to user 65534");
  EXPECT_EQ(beside().unusable, "it belongs to user 65534");
  ASSERT_EQ(chown(library_.c_str(), somebody, somebody), 0);
  EXPECT_TRUE(beside().usable()) << "whose library runs";
  ASSERT_EQ(chown(folder_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown((folder_ / "k1.kernel").c_str(), somebody, somebody), 0);
  EXPECT_TRUE(named().usable());
  EXPECT_FALSE(shipped_read("k1"));
}

/// A line of plain attention as people call it, not one of plain_lines().
std::string plain_line(std::mt19937& random) {
  const auto any = [&](std::initializer_list<int> values) { return values.begin()[random() % values.size()]; };
  const std::string start = base::join(any({0, 1}) ? "bf16" : "f16", " d", any({64, 128, 256}), " b", any({1, 2, 3, 8, 64}));
  const std::string layout = base::join(" layout=", any({0, 1}) ? "bshd" : "bhsd");
  if (random() % 3 == 0)
    return base::join("forward ", start,
                      any({0, 1})   ? " h32:8"
                      : any({0, 1}) ? " h16:16"
                                    : " h64:8",
                      " q1:", 1 + random() % 40000, layout, any({0, 1}) ? " no_lse" : "");
  const auto length = static_cast<unsigned>(any({129, 300, 512, 1000, 2048, 4095, 4096, 8192, 20000}));
  const std::string shape = base::join(any({0, 1}) ? " h16" : any({0, 1}) ? " h32:8" : " h64:8", " q", length);
  const std::string mask = any({0, 1}) ? " mask=\"causal()\"" : "";
  if (any({0, 1})) return base::join("backward ", start, shape, layout, mask);
  return base::join("forward ", start, shape, layout, mask, any({0, 1}) ? " no_lse" : " scale=0.3");
}

TEST(PlainKernels, AreThoseThatPlansAskFor) {
  std::set<std::string> shipped;
  for (const jit::KernelSource& source : plain_kernels()) shipped.insert(jit::key_of(source, "a compiler"));
  EXPECT_GT(shipped.size(), 50u);
  EXPECT_LT(shipped.size(), 120u);
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const std::string line = plain_line(random);
    const problem::Problem problem = problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0});
    for (const int multiprocessors : {132, 114, 78}) {
      const auto executable = executable_of(problem, "sm_90a", "", multiprocessors);
      for (const jit::KernelSource& source : executable->sources())
        EXPECT_TRUE(shipped.contains(jit::key_of(source, "a compiler"))) << source.stem << " of " << line;
    }
  }
}

TEST(PlainKernels, OfAnotherCompilerOrAScoreAreOthers) {
  const jit::KernelSource plain = plain_kernels().front();
  EXPECT_NE(jit::key_of(plain, "13.0 a"), jit::key_of(plain, "13.0 b"));
  std::set<std::string> shipped;
  for (const jit::KernelSource& source : plain_kernels()) shipped.insert(jit::key_of(source, "13.0 a"));
  const auto line = problem::parse_line("forward bf16 b4 h16 q4096 d64 score=\"score + to_real(q_idx - kv_idx)\"");
  const auto scored = kernels_of(problem::problem_of(line, {DeviceKind::cuda, 0}), "sm_90a", "");
  EXPECT_FALSE(shipped.contains(jit::key_of(scored.front(), "13.0 a")));
}

}  // namespace
}  // namespace foveal::cuda
