// The command as a shell sees it: exit codes, what goes to which stream, and files that are whole or not there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "files/files.h"
#include "foveal/foveal.h"
#include "foveal/foveal_c.h"
#include "own_folder.h"

namespace foveal::cli {
namespace {

namespace fs = std::filesystem;

struct Ran {
  int code;
  std::string out, err;
};

class Command : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  Ran run(const std::string& arguments) const { return run_with("", arguments); }
  Ran run_with(const std::string& environment, const std::string& arguments) const {
    const std::string command = environment + " '" + FOVEAL_COMMAND + "' " + arguments + " >" + path("stdout") + " 2>" + path("stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text(path("stdout")), text(path("stderr"))};
  }
  static std::string text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static Tensor counted(const std::string& name, std::vector<std::int64_t> shape, float step) {
    Tensor tensor = make_tensor(name, DType::f32, std::move(shape));
    for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
      const float value = std::sin(step * static_cast<float>(i));
      std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
    }
    return tensor;
  }
  static std::vector<Tensor> inputs() {
    return {counted("q", {2, 9, 4, 8}, 0.3f), counted("k", {2, 11, 2, 8}, 0.7f), counted("v", {2, 11, 2, 6}, 1.1f),
            counted("dout", {2, 9, 4, 6}, 0.9f), counted("rel", {4, 5}, 0.5f)};
  }
  static constexpr const char* variation = "--mask 'causal_bottom_right()' --score 'score + rel[head, clamp(kv_idx - q_idx, -2, 2) + 2]'";

  test::OwnFolder folder_;
};

TEST_F(Command, HelpIsNoError) {
  for (const char* arguments : {"--help", "check --help", "run --help", "bench --help", "explain --help", "targets --help"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments;
    EXPECT_NE(ran.out.find("foveal"), std::string::npos) << arguments;
  }
}

TEST_F(Command, SaysItsVersion) {
  const Ran ran = run("--version");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("foveal ") + foveal_version() + "\n");
}

TEST_F(Command, NamesWhatIsNoSubcommand) {
  EXPECT_NE(run("chekc 'forward f32'").err.find("'chekc' is no subcommand; `foveal --help` lists them"), std::string::npos);
  EXPECT_NE(run("--verison").err.find("'--verison' is no option; `foveal --help` lists them"), std::string::npos);
  EXPECT_NE(run("cache lsit").err.find("'lsit' is no subcommand; `foveal cache --help` lists them"), std::string::npos)
      << run("cache lsit").err;
}

TEST_F(Command, SaysWhyNoKernelsThatCameWithItAreUsed) {
  EXPECT_NE(run_with("FOVEAL_CACHE_DIR= FOVEAL_KERNELS_DIR=", "cache list").out.find("shipped: FOVEAL_KERNELS_DIR is empty\n"),
            std::string::npos);
  EXPECT_NE(run_with("FOVEAL_CACHE_DIR= FOVEAL_KERNELS_DIR=/nowhere", "cache list")
                .out.find("shipped: not used, No such file or directory: /nowhere\n"),
            std::string::npos);
}

TEST_F(Command, NamesTheProblemInTheLinesOwnDtype) {
  EXPECT_NE(run("check 'forward bf16 h3:2 q4 d8'").err.find("[forward bf16 b1 h3:2 q4 d8]"), std::string::npos);
  EXPECT_NE(run("check 'backward f32 q4 d8 q_offset=-1'").err.find("[backward f32 b1 h1 q4 d8]"), std::string::npos);
}

TEST_F(Command, WithoutACompilerOfKernelsNothingIsEmittedAndNoDeviceIsAtFault) {
  for (const char* asked : {"--launcher attention", "--cubin"}) {
    const Ran ran = run_with("FOVEAL_NVRTC_PATH=/nowhere FOVEAL_KERNELS_DIR= FOVEAL_CACHE_DIR=",
                             std::string("emit 'forward bf16 b1 h1 q64 d64' --arch sm_90 -o ") + path("kernels") + " " + asked);
    EXPECT_EQ(ran.code, 3) << asked << ran.err;
    EXPECT_EQ(ran.err.find("foveal: unsupported: FOVEAL_NVRTC_PATH names /nowhere"), 0U) << ran.err;
  }
}

TEST_F(Command, ExplainAndBenchNeverAnswerForAnotherDevice) {
  const Ran explained = run("explain 'forward bf16 q64 d64 device=cuda'");
  EXPECT_EQ(explained.out.find("backend         cpu"), std::string::npos) << explained.out;
  EXPECT_NE(explained.out + explained.err, "");
  const Ran timed = run("bench 'forward bf16 q64 d64 device=cuda'");
  EXPECT_EQ(timed.code, 3);
  EXPECT_NE(timed.err.find("device=cuda"), std::string::npos) << timed.err;
}

TEST_F(Command, ALineOfADeviceThatIsNotThereIsRefusedNotFailed) {
  for (const TargetInfo& target : targets())
    if (target.backend == "cuda" && target.available) GTEST_SKIP() << "there is a GPU";
  const Ran ran = run("check 'forward bf16 q64 d64 device=cuda'");
  EXPECT_EQ(ran.code, 3) << ran.out;
  EXPECT_EQ(ran.out.find("refused"), 0U) << ran.out;
  EXPECT_NE(ran.out.find("cuda: "), std::string::npos) << ran.out;
  EXPECT_EQ(run("explain 'forward bf16 q64 d64 device=cuda'").code, 3);
}

TEST_F(Command, APictureOfMoreTilesThanCanBeSeenIsRefused) {
  const Ran ran = run("explain --tile 1x1 --draw 'forward q5000'");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("5000 x 5000 tiles; expected at most 16777216: try a larger --tile"), std::string::npos) << ran.err;
}

TEST_F(Command, TilesAreTwoNumbers) {
  for (const char* tile : {"99999999999x4", "4x99999999999", "4", "x", "4x", "4x4x4", "0x4", "-1x4", "4 x4", "+4x4"}) {
    const Ran ran = run(std::string("explain --draw 'forward q8' --tile='") + tile + "'");
    EXPECT_EQ(ran.code, 2) << tile << ran.out;
    EXPECT_NE(ran.err.find("--tile"), std::string::npos) << tile;
  }
}

TEST_F(Command, ExplainNeedsNoMemoryForTheData) {
  const Ran ran = run("explain 'both f64 h64 q1048576 d128 mask=\"window(8)\"'");  // 64 GiB for each tensor
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("backend         cpu"), std::string::npos) << ran.out;
}

TEST_F(Command, BenchSaysThatALineIsRefusedNotWrong) {
  const Ran ran = run("bench 'forward f32 q2 d2000' --backend cpu");
  EXPECT_EQ(ran.code, 3);
  EXPECT_EQ(ran.err.find("wrong"), std::string::npos) << ran.err;
}

TEST_F(Command, RunReadsAFileWithAnEqualsSignInItsPath) {
  std::filesystem::create_directory(path("a=b"));
  write_tensors(inputs(), path("a=b/in.npz"));
  EXPECT_EQ(run("run " + path("a=b/in.npz") + " -o " + path("out.npz")).code, 0);
  EXPECT_NE(run("run " + path("a=b") + " -o " + path("out.npz")).err.find("expected a file"), std::string::npos);
}

TEST_F(Command, EmitSaysWhichFolderCannotBeMade) {
  for (const char* order : {"'forward bf16 q64 d64' --arch sm_80", "--arch sm_80 'forward bf16 q64 d64'"}) {  // the line is no second one
    const Ran ran = run(std::string("emit ") + order + " -o /dev/null/kernels");
    EXPECT_EQ(ran.code, 2);
    EXPECT_NE(ran.err.find("'/dev/null/kernels': cannot be made a folder"), std::string::npos) << ran.err;
  }
}

TEST_F(Command, ReadsSuitesOfOtherEditors) {
  std::ofstream(path("suite")) << "forward f32 q4 d8\r\nforward f32 q5 d8\r\n";
  EXPECT_EQ(run("check --suite " + path("suite")).code, 0);
}

TEST_F(Command, WrongUsageIsCode2OnStandardError) {
  for (const char* arguments :
       {"", "nonsense", "check", "check 'forward f32 b1 h1 q4 d4 mask=\"q_idx <\"'", "check --suite missing.txt", "check --random -1",
        "run q.npy", "run missing.npz -o out.npz", "explain 'sideways f32'", "check --dtype f99 'forward f32 q4'"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_NE(ran.err, "") << arguments;
  }
}

TEST_F(Command, OptionsThatWouldBeDroppedAreRefused) {
  for (const char* arguments : {"explain --head-groups 2 'forward q8'",
                                "explain --deal zigzag 'forward q8'",
                                "explain --unit 5 'forward q8'",
                                "explain --ranks 0 'forward q8'",
                                "explain --ranks -2 'forward q8'",
                                "explain --ranks 100000 'forward q8'",
                                "explain --ranks 1 --deal nothing 'forward q8'",
                                "explain --ranks 2 --backend cpu 'forward q8'",
                                "explain --ranks 2 'forward q8 target=scalar'",
                                "explain --ranks 2 --threads 1 'forward q8'",
                                "explain --ranks 2 --unit 0x10 'forward q8'",
                                "explain --draw --batch 0x0 'forward q8'",
                                "explain --draw --head -1 'forward q8'",
                                "explain --png missing/mask.png 'forward q8'",
                                "check --json missing/report.json 'forward q8'",
                                "check --json . 'forward q8'",
                                "bench --json missing/report.json 'forward q8'",
                                "tune --seconds 0 'forward q8'",
                                "explain --ranks 2 --draw 'forward q8'",
                                "explain --tile 8x8 'forward q8'",
                                "run --mask '' --output out.npz q.npz",
                                "run --score '' --output out.npz q.npz",
                                "run --sink '' --output out.npz q.npz",
                                "run --grad '' --output out.npz q.npz",
                                "check --backend '' 'forward q8'",
                                "check --target '' 'forward q8'",
                                "check --match '' 'forward q8'",
                                "check ''",
                                "explain --ranks 2 --deal '' 'forward q8'",
                                "explain --png '' 'forward q8'",
                                "check --json '' 'forward q8'",
                                "bench --json '' 'forward q8'",
                                "check --suite '' 'forward q8'",
                                "tune --write '' 'forward q8'",
                                "explain --batch 5 'forward q8'",
                                "explain --head 1 'forward q8'",
                                "emit --arch sm_80 --out e --names f 'forward q8'",
                                "emit --arch sm_80 --out e 'forward q8 backend=cpu'",
                                "emit --arch sm_80 --out e --launcher '' 'forward q8'",
                                "emit --arch sm_90b --out e 'forward q8'",
                                "emit --arch sm_91 --out e 'forward q8'",
                                "emit --arch sm_80a --out e 'forward q8'",
                                "tune --write missing/tuned.txt 'forward q8'",
                                "check --target all,scalar 'forward q8'",
                                "check --seconds nan 'forward q8'",
                                "bench --seconds -1 'forward q8'",
                                "check --seed 18446744073709551616 --random 1",
                                "check --random -1",
                                "check --suite . 'forward q8'",
                                "check --threads 1e3 'forward q8'",
                                "check 'forward q8 backend=foo'",
                                "check 'forward q8 target=foo'",
                                "check 'forward q8 dlse'",
                                "check 'forward q8 grads=dq'",
                                "check 'backward q8 no_lse'"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_NE(ran.err, "") << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
  }
}

TEST_F(Command, AFileThatMayNotGrowIsCode4AndLeavesNothing) {
  write_tensors({counted("q", {1, 64, 4, 16}, 0.3f), counted("k", {1, 64, 4, 16}, 0.7f), counted("v", {1, 64, 4, 16}, 1.1f)},
                path("in.npz"));
  const std::string command =
      "ulimit -f 4; '" + std::string(FOVEAL_COMMAND) + "' run -q " + path("in.npz") + " -o " + path("out.npz") + " 2>" + path("stderr");
  const int status = std::system(("sh -c \"" + command + "\"").c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 4);
  EXPECT_NE(text(path("stderr")).find("out.npz: cannot be written: File too large"), std::string::npos) << text(path("stderr"));
  for (const auto& entry : fs::directory_iterator(fs::path(path("in.npz")).parent_path()))
    EXPECT_TRUE(entry.path().filename() == "in.npz" || entry.path().filename() == "stderr") << entry.path();
}

TEST_F(Command, OutputThatCannotBeWrittenIsCode4) { EXPECT_EQ(run("explain 'forward q8' >/dev/full #").code, 4); }

TEST_F(Command, AMessageThatCannotBeWrittenChangesNoCode) {
  for (const char* stream : {"2>/dev/full #", "2>&- #"}) {
    EXPECT_EQ(run(std::string("explain 'sideways' >/dev/null ") + stream).code, 2) << stream;
    EXPECT_EQ(run(std::string("nonsense >/dev/null ") + stream).code, 2) << stream;
    EXPECT_EQ(run(std::string("bench --backend cuda 'forward q8' >/dev/null ") + stream).code, 3) << stream;
  }
}

TEST_F(Command, OneRankHasAPlanOfRanks) {
  EXPECT_NE(run("explain --ranks 1 'forward q8'").out.find("context plan for 1 rank"), std::string::npos);
}

TEST_F(Command, AWrongLineDoesNotEndACheck) {
  const Ran ran = run("check --json " + path("report.json") + " 'forward q4 d8' 'forward h3:2 q4 d8' 'forward q5 d8'");
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_NE(ran.err.find("heads 2 does not divide"), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find("2 passed, 0 failed, 0 refused"), std::string::npos) << ran.out;
  EXPECT_EQ(nlohmann::json::parse(text(path("report.json"))).size(), 2u);
}

TEST_F(Command, SaysThatNoLineMatches) {
  for (const char* subcommand : {"check", "explain", "bench"})
    EXPECT_NE(run(std::string(subcommand) + " --match bf16 'forward f32'").err.find("that contains 'bf16' (--match)"), std::string::npos)
        << subcommand;
}

TEST_F(Command, TuneWithoutADeviceLeavesNoFile) {
  for (const TargetInfo& target : targets())
    if (target.backend == "cuda" && target.available) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(run("tune --write " + path("tuned.txt") + " 'forward q8'").code, 3);
  EXPECT_FALSE(fs::exists(path("tuned.txt")));
}

TEST_F(Command, WhatReplacesAFileKeepsItsPermissionsAndItsLinks) {
  write_tensors(inputs(), path("in.npz"));
  const fs::perms own = fs::perms::owner_read | fs::perms::owner_write;
  std::ofstream(path("secret.npz")) << "old";
  fs::permissions(path("secret.npz"), own);
  fs::create_symlink("secret.npz", path("link.npz"));
  fs::create_symlink("fresh.npz", path("first.npz"));  // to what is not there yet
  fs::create_symlink("first.npz", path("second.npz"));
  for (const char* output : {"link.npz", "second.npz"})
    EXPECT_EQ(run("run -q " + path("in.npz") + " -o " + path(output)).code, 0) << output;
  EXPECT_TRUE(fs::is_symlink(path("link.npz")) && fs::is_symlink(path("first.npz")) && fs::is_symlink(path("second.npz")));
  EXPECT_EQ(fs::status(path("secret.npz")).permissions(), own);
  EXPECT_FALSE(read_tensors(path("secret.npz")).empty() || read_tensors(path("fresh.npz")).empty());
}

TEST_F(Command, WhatNothingCanDoIsCode3) {
  const Ran ran = run("explain --backend cpu --target nothing 'forward f32 q4 d4'");
  EXPECT_TRUE(ran.code == 3 || ran.code == 2) << ran.err;
  EXPECT_NE(ran.err, "");
}

TEST_F(Command, TheCacheOfRelativeVariablesIsNone) {
  const auto folder = [this](const std::string& variables) {
    const std::string command = "cd " + path("") + "; env -u FOVEAL_CACHE_DIR -u XDG_CACHE_HOME -u HOME " + variables + " '" +
                                FOVEAL_COMMAND + "' cache list >" + path("stdout");
    EXPECT_EQ(std::system(command.c_str()), 0) << variables;
    const std::string listed = text(path("stdout"));
    return listed.substr(0, listed.find('\n'));
  };
  EXPECT_EQ(folder("XDG_CACHE_HOME=" + path("xdg") + " HOME=" + path("home")), path("xdg/foveal"));
  EXPECT_EQ(folder("XDG_CACHE_HOME=relative HOME=" + path("home")), path("home/.cache/foveal"));
  EXPECT_EQ(folder("XDG_CACHE_HOME= HOME=" + path("home")), path("home/.cache/foveal"));
  EXPECT_EQ(folder("FOVEAL_CACHE_DIR= HOME=" + path("home")), "");
  EXPECT_EQ(folder("XDG_CACHE_HOME=relative"), "");
  EXPECT_EQ(folder("HOME=relative"), "");
  EXPECT_FALSE(fs::exists(path("relative")));
}

TEST_F(Command, BenchSaysWhatIsWrongByItsCode) {
  const Ran target = run("bench --target nothing 'forward f32 q4 d4'"), backend = run("bench 'forward f32 q4 d4 backend=nothing'");
  for (const Ran& ran : {target, backend}) {
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find("there is no 'nothing'"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(run("bench --backend cuda 'forward f32 q4 d4'").code, 3);
}

TEST_F(Command, CheckCountsAndReports) {
  const Ran ran = run("check --backend reference --json " + path("report.json") +
                      " 'forward f32 b1 h2 q5 d4' 'backward f32 b1 h2 q5 d4 mask=\"causal()\"'");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("2 passed, 0 failed, 0 refused"), std::string::npos) << ran.out;
  const auto report = nlohmann::json::parse(text(path("report.json")));
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[1]["kernel"], "reference.f32.backward");
  EXPECT_EQ(report[1]["tensors"].size(), 3u);
}

TEST_F(Command, CheckRunsTheLineThatItPrints) {
  const Ran ran = run("check --random 3 --seed 17 --backend reference");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find("3 passed"), std::string::npos);
}

TEST_F(Command, Regressions) {
  const Ran ran = run("check --target all --suite '" + std::string(FOVEAL_REGRESSIONS) + "'");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_EQ(ran.out.find("refused  "), std::string::npos);
}

TEST_F(Command, LinesThatSayBothAreOneOfEachPass) {
  const Ran ran = run("check 'both f32 b1 h1 q9 d8'");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find("2 passed"), std::string::npos);
  EXPECT_NE(ran.out.find(".forward"), std::string::npos);
  EXPECT_NE(ran.out.find(".backward"), std::string::npos);
}

TEST_F(Command, SupportNeedsNoGpu) {
  const Ran ran = run("support");
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto row = [&](const std::string& feature) {
    const std::size_t begin = ran.out.find("| " + feature + " |");
    return begin == std::string::npos ? "" : ran.out.substr(begin, ran.out.find('\n', begin) - begin);
  };
  EXPECT_NE(row("forward / backward").find("| cuda sm90 | cuda sm80 |"), std::string::npos) << ran.out;
  EXPECT_NE(row("plain").find("| all | bf16 f16 | all | all |"), std::string::npos) << ran.out;  // cpu, sm90, sm80, reference
  EXPECT_NE(row("head_dim 512").find("| all |"), std::string::npos) << ran.out;
}

TEST_F(Command, CheckTakesASampleOfQueries) {
  const Ran ran = run("check --sample 8 'backward f32 b1 h2 q200 d8 mask=\"causal()\"'");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("sample=8"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("1 passed, 0 failed"), std::string::npos) << ran.out;
}

TEST_F(Command, ExplainAsJson) {
  const Ran ran = run("explain --json 'backward f32 b1 h2 q64 d16 mask=\"causal()\"'");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto plans = nlohmann::json::parse(ran.out);
  EXPECT_FALSE(plans[0]["kernel"].get<std::string>().empty());
  EXPECT_EQ(plans[0]["strategies"].size(), 3u);
}

/// The pixels of a PNG file as to_png() writes them: one IDAT chunk, rows without a filter.
std::vector<std::vector<std::array<int, 3>>> pixels_of(const std::string& png) {
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(png.at(at + i));
    return value;
  };
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4) + png.substr(37, 4), "IHDRIDAT");
  const std::size_t width = number(16), height = number(20), stride = 1 + 3 * width;
  std::string rows(height * stride, '\0');
  uLongf size = rows.size();
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size, reinterpret_cast<const Bytef*>(png.data()) + 41, number(33)), Z_OK);
  EXPECT_EQ(size, rows.size());
  EXPECT_EQ(number(29), crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17));
  std::vector<std::vector<std::array<int, 3>>> pixels(height, std::vector<std::array<int, 3>>(width));
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t x = 0; x < width; ++x)
      for (std::size_t i = 0; i < 3; ++i) pixels[y][x][i] = static_cast<unsigned char>(rows[y * stride + 1 + 3 * x + i]);
  return pixels;
}

using Pixels = std::vector<std::vector<std::array<int, 3>>>;
constexpr std::array<int, 3> paper{255, 255, 255}, between_tiles{210, 210, 206}, ink{40, 40, 44};

/// (x, y) of the upper left corner of the tiles, which a line surrounds, and its length.
std::array<std::size_t, 3> tiles_of(const Pixels& pixels) {
  for (std::size_t y = 0; y < pixels.size(); ++y)
    for (std::size_t x = 0; x < pixels[y].size(); ++x)
      if (pixels[y][x] == between_tiles) {
        std::size_t end = x;
        while (end < pixels[y].size() && pixels[y][end] == between_tiles) ++end;
        return {x, y, end - x};
      }
  ADD_FAILURE() << "no tiles";
  return {};
}

bool has(const Pixels& pixels, std::size_t left, std::size_t top, std::size_t right, std::size_t bottom, const std::array<int, 3>& colour) {
  for (std::size_t y = top; y < bottom; ++y)
    if (std::find(pixels[y].begin() + static_cast<std::ptrdiff_t>(left), pixels[y].begin() + static_cast<std::ptrdiff_t>(right), colour) !=
        pixels[y].begin() + static_cast<std::ptrdiff_t>(right))
      return true;
  return false;
}

TEST_F(Command, ExplainDrawsTheMask) {
  const std::string line =
      "'forward f32 b2 h2 q40:50 d4 mask=\"(kv_idx <= q_idx) & (kv_idx >= from[batch])\" param=\"from: integer[2] integers(20, 21)\"'";
  Ran ran = run("explain --draw --tile 10x10 --batch 1 --png " + path("mask.png") + " " + line);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("1 full (#), 2 partial (+), 17 empty (.)\n  .....\n  .....\n  ..+..\n  ..#+.\n"), std::string::npos) << ran.out;
  const auto pixels = pixels_of(text(path("mask.png")));
  const auto [left, top, width] = tiles_of(pixels);
  const std::size_t side = (width - 1) / 5, below = top + 4 * side + 1;
  ASSERT_LT(below, pixels.size());
  EXPECT_EQ(pixels[below - 1][left], between_tiles);
  std::set<std::array<int, 3>> colours;
  for (std::size_t row = 0; row < 4; ++row)
    for (std::size_t column = 0; column < 5; ++column) {
      const char tile = std::string("............+....#+.")[5 * row + column];
      const auto at = [&](std::size_t y, std::size_t x) { return pixels[top + y][left + x]; };
      const auto like = tile == '#' ? at(3 * side + 2, 2 * side + 2) : tile == '+' ? at(2 * side + 2, 2 * side + 2) : at(2, 2);
      EXPECT_EQ(at(row * side + side / 2, column * side + side / 2), like) << row << ", " << column;
      colours.insert(like);
    }
  EXPECT_EQ(colours.size(), 3u);
  // A title and the name of the keys, that of the queries, and what each colour means.
  EXPECT_TRUE(has(pixels, 0, 0, pixels[0].size(), top, ink));
  EXPECT_TRUE(has(pixels, 0, top, left, below, ink));
  for (const auto& colour : colours) EXPECT_TRUE(has(pixels, 0, below, pixels[0].size(), pixels.size(), colour));
  EXPECT_EQ(pixels[0][0], paper);

  ran = run("explain --draw --tile 128x128 'forward f32 b1 h1 q100000 d4 mask=\"causal()\"'");
  EXPECT_NE(ran.out.find("a character for 13 x 13 of them\n  +...."), std::string::npos) << ran.out;
  for (const std::string bad : {"--draw --tile 10", "--draw --tile 0x4", "--draw --batch 2", "--draw --head 99", "--draw --json"}) {
    ran = run("explain " + bad + " " + line);
    EXPECT_NE(ran.code, 0) << bad;
    EXPECT_NE(ran.err.find("explain: --"), std::string::npos) << bad << ran.err;
  }
  EXPECT_NE(run("explain --png " + path("no") + "/folder.png " + line).code, 0);
}

TEST_F(Command, ExplainDrawsASingleTask) {
  const Ran ran = run("explain --draw --threads 1 --png " + path("mask.png") + " 'forward f32 q8 d8'");
  EXPECT_NE(ran.out.find("\n1 task, which owns queries; 1 thread at a time\n"), std::string::npos) << ran.out << ran.err;
}

TEST_F(Command, ExplainDrawsTheScheduleOfAGpuThatIsNotHere) {
  const std::string line = "'backward bf16 h2 q1024 d64 mask=\"causal()\" device=cuda'";
  const Ran ran = run("explain --arch sm_90 --draw " + line);
  if (ran.code == 3) GTEST_SKIP() << ran.err;
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("kernel          cuda.sm90.bf16.backward"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find(" tasks, which own keys; "), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("  keys from 0: task"), std::string::npos) << ran.out;
  EXPECT_NE(run("explain --arch sm_90 --sms 8 --draw " + line).out, ran.out);
  EXPECT_NE(run("explain --arch sm_90 --backend cpu " + line).err.find("--arch with backend=cpu"), std::string::npos);
  EXPECT_NE(run("explain --arch sm_91 " + line).err.find("arch: sm_91"), std::string::npos);
}

TEST_F(Command, ExplainDrawsTheSchedule) {
  const std::string forward = "'forward f32 b2 h2 q512 d16 mask=\"causal()\"'";
  const Ran json = run("explain --json " + forward);
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json schedule = nlohmann::json::parse(json.out)[0]["schedule"];
  const Ran drawn = run("explain --draw --batch 1 --head 1 --png " + path("schedule.png") + " " + forward);
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  const auto block_q = schedule["block_q"].get<std::int64_t>(), block_kv = schedule["block_kv"].get<std::int64_t>();
  EXPECT_NE(drawn.out.find("tiles of " + std::to_string(block_q) + " queries x " + std::to_string(block_kv) + " keys"), std::string::npos)
      << drawn.out;
  // Each query of each head is in one row; the tasks with the most keys come first, and the drawing names each row's task.
  std::map<std::pair<int, int>, std::vector<int>> covered;
  std::int64_t last_end = 512;
  for (const auto& row : schedule["rows"]) {
    for (int head = row["head"]; head < row["head"].get<int>() + row["heads"].get<int>(); ++head) {
      std::vector<int>& queries = covered[{row["batch"], head}];
      queries.resize(512);
      for (int q = row["begin"]; q < row["end"].get<int>(); ++q) ++queries[static_cast<std::size_t>(q)];
    }
    if (row["batch"] != 1 || row["head"] != 1) continue;
    EXPECT_LE(row["begin"].get<std::int64_t>(), last_end);
    last_end = row["end"];
    const std::string task = "  task " + std::to_string(row["task"].get<int>()) + "\n";
    EXPECT_NE(drawn.out.find(task), std::string::npos) << task << drawn.out;
  }
  ASSERT_EQ(covered.size(), 4u);
  for (const auto& [place, queries] : covered) EXPECT_EQ(queries, std::vector<int>(512, 1));

  // The last row of tiles is done first: the darkest; and the legend has the colours of the first task and of the last.
  const auto pixels = pixels_of(text(path("schedule.png")));
  const auto [left, top, width] = tiles_of(pixels);
  std::size_t strip = left - 1;
  while (strip > 0 && pixels[top + 4][strip] == paper) --strip;
  const std::size_t below = top + width;  // as many rows as columns
  EXPECT_LT(pixels[below - 4][strip][0], pixels[top + 4][strip][0]);
  std::set<std::array<int, 3>> colours;
  for (std::size_t y = top + 4; y < below - 1; y += 4) colours.insert(pixels[y][strip]);
  EXPECT_GE(colours.size(), static_cast<std::size_t>(512 / block_q)) << "tasks have colours of their own";
  EXPECT_NE(run("explain --draw --backend reference " + forward).out.find("tiles of 128 queries x 128 keys"), std::string::npos);
}

TEST_F(Command, BenchGivesFigures) {
  const Ran ran = run("bench --seconds 0.01 --threads 1 --json " + path("bench.json") + " 'forward f32 b1 h1 q64 d16 mask=\"causal()\"'");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto rows = nlohmann::json::parse(text(path("bench.json")));
  EXPECT_GT(rows[0]["timing"]["median_s"].get<double>(), 0);
  EXPECT_GT(rows[0]["gflops"].get<double>(), 0);
}

// Whose calibrations took longer than they by far.
TEST_F(Command, BenchOfTinyProblemsEndsWhenItsTimeIsOver) {
  const auto begin = std::chrono::steady_clock::now();
  const Ran ran = run("bench --seconds 0.1 --no-unfused --threads 1 'forward f32 q4 d4 mask=\"kv_idx > 99\"' 'forward f32 q4 d4'");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

// What `run` writes is what the library computes, for every file format.
TEST_F(Command, RunEqualsTheLibrary) {
  std::vector<Tensor> tensors = inputs();
  Tensor out = make_tensor("out", DType::f32, {2, 9, 4, 6}), lse = make_tensor("lse", DType::f32, {2, 4, 9});
  Tensor dq = make_tensor("dq", DType::f32, tensors[0].shape), dk = make_tensor("dk", DType::f32, tensors[1].shape);
  Tensor dv = make_tensor("dv", DType::f32, tensors[2].shape), drel = make_tensor("drel", DType::f32, {4, 5});
  const Param rel("rel", {4, 5});
  const Attention attention{.score_mod = parse("score + rel[head, clamp(kv_idx - q_idx, -2, 2) + 2]", {rel}),
                            .mask = causal_bottom_right()};
  forward(attention, {.q = tensors[0].view(), .k = tensors[1].view(), .v = tensors[2].view(), .params = {{rel, tensors[4].view()}}},
          {.out = out.view(), .lse = lse.view()});
  backward(attention,
           {.q = tensors[0].view(),
            .k = tensors[1].view(),
            .v = tensors[2].view(),
            .out = out.view(),
            .lse = lse.view(),
            .dout = tensors[3].view(),
            .params = {{rel, tensors[4].view()}}},
           {.dq = dq.view(), .dk = dk.view(), .dv = dv.view(), .dparams = {{rel, drel.view()}}});
  for (const char* ending : {".npz", ".safetensors"}) {
    write_tensors(tensors, path(std::string("in") + ending));
    const Ran ran = run("run " + path(std::string("in") + ending) + " -o " + path(std::string("out") + ending) + " " + variation);
    ASSERT_EQ(ran.code, 0) << ran.err;
    const std::vector<Tensor> results = read_tensors(path(std::string("out") + ending));
    ASSERT_EQ(results.size(), 6u);
    for (const Tensor* expected : {&out, &lse, &dq, &dk, &dv, &drel}) {
      const auto found = std::ranges::find(results, expected->name, &Tensor::name);
      ASSERT_NE(found, results.end()) << expected->name;
      EXPECT_EQ(found->shape, expected->shape) << expected->name;
      EXPECT_EQ(found->bytes, expected->bytes) << expected->name;
    }
  }
}

TEST_F(Command, RunForwardOnlyFromSingleFilesIntoAFolder) {
  const std::vector<Tensor> tensors = inputs();
  write_tensors({tensors[0], tensors[1], tensors[2]}, path("in"));
  const Ran ran = run("run q=" + path("in/q.npy") + " " + path("in/k.npy") + " " + path("in/v.npy") + " -o " + path("out"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(read_tensors(path("out/out.npy")).front().shape, (std::vector<std::int64_t>{2, 9, 4, 6}));
  EXPECT_TRUE(fs::exists(path("out/lse.npy")));
  EXPECT_FALSE(fs::exists(path("out/dq.npy")));
}

// Wrong input: code 2, a message, and nothing where the output would be.
TEST_F(Command, RunLeavesNothingBehindOnErrors) {
  std::vector<Tensor> tensors = inputs();
  write_tensors(tensors, path("good.npz"));
  std::vector<Tensor> wrong_type = tensors, wrong_shape = tensors, no_v = tensors;
  wrong_type[1] = make_tensor("k", DType::i32, tensors[1].shape);
  wrong_shape[1] = make_tensor("k", DType::f32, {2, 11, 3, 8});
  no_v.erase(no_v.begin() + 2);
  write_tensors(wrong_type, path("wrong_type.npz"));
  write_tensors(wrong_shape, path("wrong_shape.npz"));
  write_tensors(no_v, path("no_v.npz"));
  fs::copy(path("good.npz"), path("cut.npz"));
  fs::resize_file(path("cut.npz"), fs::file_size(path("cut.npz")) / 2);
  const std::string good = path("good.npz");
  for (const std::string& arguments :
       {path("wrong_type.npz") + " " + variation, path("wrong_shape.npz") + " " + variation, path("no_v.npz") + " " + variation,
        path("cut.npz") + " " + variation, path("missing.npz"), good + " --score 'score + nothing[head]'", good + " --score 'score +'",
        good + " --mask 'score'", good + " " + variation + " --sink rel", good + " " + variation + " --grad nothing", good + " " + good}) {
    const Ran ran = run("run " + arguments + " -o " + path("out.npz"));
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.err;
    EXPECT_NE(ran.err, "") << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_FALSE(fs::exists(path("out.npz"))) << arguments;
    EXPECT_EQ(std::ranges::count_if(fs::directory_iterator(fs::path(good).parent_path()),
                                    [](const auto& entry) { return entry.path().extension() == ".unfinished"; }),
              0)
        << arguments;
  }
}

TEST_F(Command, RunDoesNotReplaceItsInputs) {
  write_tensors(inputs(), path("in.npz"));
  fs::create_symlink(path("in.npz"), path("link.npz"));
  for (const char* output : {"in.npz", "link.npz"}) {
    const Ran ran = run("run " + path("in.npz") + " -o " + path(output));
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find("is an input"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(read_tensors(path("in.npz")).size(), inputs().size());
  // A folder of .npy files, too, where one has the name of a result.
  std::vector<Tensor> tensors = inputs();
  tensors[3].name = "out";
  write_tensors(tensors, path("folder"));
  std::string files;
  for (const Tensor& tensor : tensors) files += " " + path("folder/") + tensor.name + ".npy";
  const Ran ran = run("run" + files + " -o " + path("folder"));
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_NE(ran.err.find("out.npy is an input"), std::string::npos) << ran.err;
}

TEST_F(Command, RunSaysWhichOptionIsNoExpression) {
  write_tensors(inputs(), path("in.npz"));
  const std::string files = "run " + path("in.npz") + " -o " + path("out.npz");
  for (const std::string option : {"--mask", "--score"}) {
    const Ran ran = run(files + " " + option + " 'kv_idx <='");
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_NE(ran.err.find(": " + option + ": line 1, column 10: expected a value"), std::string::npos) << ran.err;
  }
}

TEST_F(Command, RunTakesTensorsThatNoScoreCanName) {
  std::vector<Tensor> tensors = inputs();
  tensors.push_back(make_tensor("model.layers.0", DType::f32, {4}));
  write_tensors(tensors, path("in.safetensors"));
  const Ran ran = run("run " + path("in.safetensors") + " -o " + path("out.npz"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("model.layers.0 is not read: no score or mask can name it"), std::string::npos) << ran.out;
}

TEST_F(Command, SuitesMayBeginWithAByteOrderMark) {
  std::ofstream(path("suite")) << "\xEF\xBB\xBF# lines\r\nforward q8\r\n";
  EXPECT_EQ(run("check --suite " + path("suite")).code, 0);
}

TEST_F(Command, ASuiteWithoutAnEndIsRefused) {
  for (const char* command : {"check", "bench", "explain"}) {
    const Ran ran = run_with("timeout 60", std::string(command) + " --suite /dev/zero");
    EXPECT_EQ(ran.code, 2) << command;
    EXPECT_NE(ran.err.find("/dev/zero: more than 67108864 bytes; expected a file of problem lines"), std::string::npos) << ran.err;
  }
}

TEST_F(Command, WhatDoesNotFitMemoryIsCode5) {
  for (const char* command : {"check", "bench"}) {
    const Ran ran = run(std::string(command) + " 'forward f32 b16 h64 q100000000 d64' 'forward f32 q4 d8'");  // 26 TB for each tensor
    EXPECT_EQ(ran.code, 5) << command << ran.err;
    EXPECT_EQ(ran.err.find("foveal: too little memory: problem line: q: cannot allocate 26214400000512 bytes"), 0U) << ran.err;
    EXPECT_NE(ran.out.find("q4"), std::string::npos) << "the line that fits: " << ran.out;
  }
}

TEST_F(Command, RunSaysWhatItDoesNotUse) {
  const std::vector<Tensor> tensors = {make_tensor("q", DType::f32, {1, 4, 2, 8}), make_tensor("k", DType::f32, {1, 4, 2, 8}),
                                       make_tensor("v", DType::f32, {1, 4, 2, 8}), make_tensor("b", DType::f32, {4})};
  write_tensors(tensors, path("in.npz"));
  std::vector<Tensor> more = tensors;
  more.push_back(make_tensor("dlse", DType::f32, {1, 2, 4}));
  write_tensors(more, path("dlse.npz"));
  more.push_back(make_tensor("dout", DType::f32, {1, 4, 2, 8}));
  write_tensors(more, path("dout.npz"));
  for (const std::string& arguments :
       {path("dlse.npz"), path("in.npz") + " --grad b", path("dout.npz") + " --score 'score + b[q_idx]' --grad q",
        path("in.npz") + " --dropout-seed 5", path("in.npz") + " --dropout 0.5 --dropout-seed -1",
        path("in.npz") + " --dropout 0.5 --dropout-offset 18446744073709551616"}) {
    const Ran ran = run("run " + arguments + " -o " + path("out.npz"));
    EXPECT_EQ(ran.code, 2) << arguments << ran.out;
    EXPECT_FALSE(fs::exists(path("out.npz"))) << arguments;
  }
  EXPECT_NE(run("run " + path("in.npz") + " -o " + path("out.npz")).out.find("b            is not read"), std::string::npos);
  const Ran ran = run("run " + path("dout.npz") + " -o " + path("out.npz"));  // an unread parameter has no gradient
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("b            is not read"), std::string::npos) << ran.out;
  EXPECT_EQ(run("run " + path("dout.npz") + " --mask 'b[0] < 1.0' -o " + path("out.npz")).out.find("is not read"), std::string::npos);
}

}  // namespace
}  // namespace foveal::cli
