// Emitted programs compile as C and ask the driver for what the plan asks: run against a driver that writes everything down.
#include "cuda/record/emit_c.h"

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "cuda/kernels_of.h"
#include "emitted_program.h"
#include "foveal/error.h"
#include "nvrtc_here.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

class EmitC : public test::NeedsNvrtc {};

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(value));
  return text;
}

constexpr std::uint64_t first_table = 0x7000000000000000u, stream = 0x77;

/// What mock_driver.c should have written.
class Expected {
 public:
  Expected(const Recording& recording, const std::map<std::string, void*>& addresses, void* workspace) : r_(recording) {
    std::uint64_t table = first_table;
    for (const Recording::Block& block : r_.blocks) {
      if (block.name.empty()) {
        const auto [place, is_new] = tables_.emplace(block.bytes, table);  // equal tables are one
        base_.push_back(place->second);
        if (is_new) table += (block.bytes.size() + 255) / 256 * 256;
      } else {
        base_.push_back(reinterpret_cast<std::uint64_t>(block.name == "workspace" ? workspace : addresses.at(block.name)));
      }
    }
  }

  std::string load() const {
    std::string text;
    for (std::size_t k = 0; k < r_.kernels.size(); ++k) {
      text += "function " + std::to_string(k) + " " + r_.kernels[k]->stem + "\n";
      if (r_.shared_bytes[k] > 0) text += "attribute " + std::to_string(k) + ": 8 = " + std::to_string(r_.shared_bytes[k]) + "\n";
    }
    std::set<std::uint64_t> said;
    for (std::size_t b = 0; b < r_.blocks.size(); ++b) {
      if (!r_.blocks[b].name.empty() || !said.insert(base_[b]).second) continue;
      std::uint64_t sum = 14695981039346656037u;
      for (const char c : r_.blocks[b].bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211u;
      text += "table " + hex(base_[b]) + ": " + std::to_string(r_.blocks[b].bytes.size()) + " bytes, " + hex(sum) + "\n";
    }
    return text;
  }

  std::string run() const {
    std::string text;
    for (const auto& step : r_.steps) {
      if (const auto* fill = std::get_if<Recording::Fill>(&step)) {
        text += "fill " + hex(at(fill->address)) + ": " + std::to_string(fill->value) + ", " + std::to_string(fill->bytes) +
                " bytes, stream " + hex(stream) + "\n";
      } else {
        text += launch(std::get<Recording::Launch>(step));
      }
    }
    return text;
  }

 private:
  std::uint64_t at(const Recording::Address& address) const { return base_[static_cast<std::size_t>(address.block)] + address.offset; }

  std::string launch(const Recording::Launch& launch) const {
    std::vector<std::uint64_t> words(launch.argument.size() / 8);
    std::memcpy(words.data(), launch.argument.data(), launch.argument.size());
    for (const auto& [byte, address] : launch.addresses) words[byte / 8] = at(address);
    for (const auto& [byte, map] : launch.maps) {
      std::uint64_t* out = words.data() + byte / 8;
      out[0] = at(map.address);
      const std::size_t rank = map.dims.size();
      for (std::size_t d = 0; d < rank; ++d) {
        out[1 + d] = map.dims[d];
        out[10 + d / 4] |= std::uint64_t{map.box[d] * 16 + map.element_strides[d]} << d % 4 * 16;
      }
      for (std::size_t d = 0; d + 1 < rank; ++d) out[6 + d] = map.strides_bytes[d];
      out[12] = static_cast<std::uint64_t>(map.type), out[13] = static_cast<std::uint64_t>(map.interleave);
      out[14] = static_cast<std::uint64_t>(map.swizzle * 16 + map.l2_promotion),
      out[15] = static_cast<std::uint64_t>(map.outside) + 16 * rank;
    }
    char text[200];
    std::snprintf(text, sizeof text,
                  "%s %d grid %u %u %u threads %u shared %u stream %s:", launch.cooperative ? "launch together" : "launch", launch.kernel,
                  launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, launch.shared_bytes, hex(stream).c_str());
    std::string line = text;
    for (const std::uint64_t word : words) line += " " + hex(word);
    return line + "\n";
  }

  const Recording& r_;
  std::vector<std::uint64_t> base_;
  std::map<std::string, std::uint64_t> tables_;
};

TEST_F(EmitC, AsksTheDriverForWhatThePlanAsks) {
  const std::string mock = std::string(FOVEAL_SOURCE_DIR) + "/tests/cuda/mock_driver.c";
  for (const auto& [arch, text] :
       {std::pair{"sm_90a", "forward bf16 b2 h4:2 q300 d64 mask=\"kv_idx <= q_idx\""},
        {"sm_90a",
         "backward bf16 b2 h4:2 q300 d64 mask=\"(kv_idx <= q_idx) | (kv_idx < 9)\" score=\"score * t[head]\" param=\"t: real[4] grad\""},
        {"sm_90a", "forward bf16 b1 h28:4 q3:9000 d128"},
        {"sm_90a", "backward bf16 b1 h2 q300 d256 mask=\"kv_idx <= q_idx\""},
        {"sm_80", "forward f32 b1 h2 q100 d40 mask=\"doc[q_idx] == doc[kv_idx]\" param=\"doc: integer[100]\""},
        {"sm_80", "backward f16 b3 h4 q50 total=100 d80 mask=\"kv_idx <= q_idx\" sink=s param=\"s: real[4] grad\""}}) {
    const Recording recording = record(problem_of(text), arch, "");
    std::map<std::string, void*> addresses;
    for (const Recording::Block& block : recording.blocks)
      addresses[block.name] = reinterpret_cast<void*>(0x10000000 * (addresses.size() + 1));
    void* const workspace = reinterpret_cast<void*>(0x123456000);

    test::EmittedProgram program(recording, mock);
    for (const auto& step : recording.steps) {
      if (const auto* launch = std::get_if<Recording::Launch>(&step))
        program.find<void(int, int)>("mock_set_argument_words")(launch->kernel, static_cast<int>(launch->argument.size() / 8));
    }
    program.find<void(int, int, int)>("mock_set_device")(arch[3] - '0', 0, recording.multiprocessors);
    ASSERT_EQ(program.load(), 0) << text;
    ASSERT_EQ(program.run(addresses, workspace, reinterpret_cast<void*>(stream)), 0) << text;
    const Expected expected(recording, addresses, workspace);
    EXPECT_EQ(program.find<const char*()>("mock_log")(), expected.load() + expected.run()) << text;
    ASSERT_GT(recording.steps.size(), 0u);

    addresses.at("q") = static_cast<char*>(addresses.at("q")) + 4;
    EXPECT_EQ(program.run(addresses, workspace, nullptr), 1) << "an address that is not aligned";
    addresses.at("q") = static_cast<char*>(addresses.at("q")) - 4;
    for (auto& [name, address] : addresses) {
      if (name.empty() || name == "workspace") continue;
      void* const given = std::exchange(address, nullptr);
      EXPECT_EQ(program.run(addresses, workspace, nullptr), 1) << name << " is null";
      address = given;
    }
    EXPECT_EQ(program.run(addresses, nullptr, nullptr), recording.workspace_bytes > 0 ? 1 : 0) << "a workspace that is null";
    EXPECT_EQ(program.run(addresses, workspace, nullptr), 0);
    EXPECT_EQ(program.run(addresses, static_cast<char*>(workspace) + 16, nullptr), 1) << "a workspace that is not aligned";
    if (std::string(text).find("total=") == std::string::npos) {
      EXPECT_EQ(program.run(addresses, workspace, nullptr, 0, 1), 1) << "another shape";
    }
    EXPECT_EQ(program.unload(), 0);
    EXPECT_EQ(program.find<int()>("mock_modules")(), 0);
  }
}

/// Names of passes are the caller's; what the program calls its own is not in their way.
TEST_F(EmitC, PassesMayBeNamedAsThePartsOfAProgram) {
  const Recording recording = record(problem_of("forward bf16 b1 h2 q200 d64 mask=\"kv_idx <= q_idx\""), "sm_80", "");
  std::vector<EmittedPass> passes;
  for (const char* name : {"image", "table", "argument", "kernels", "encode", "word", "int"}) passes.push_back({name, {recording}});
  const test::EmittedProgram program(passes, std::string(FOVEAL_SOURCE_DIR) + "/tests/cuda/mock_driver.c");
  EXPECT_NE(program.find<int()>("emitted_image"), nullptr);
}

/// Both passes on several architectures and cards in one program: each device gets what was made for it.
TEST_F(EmitC, OneProgramServesPassesAndDevices) {
  const std::vector<std::pair<std::string, int>> devices{{"sm_90a", 132}, {"sm_90a", 78}, {"sm_86", 84}, {"sm_80", 108}};
  const char* lines[] = {"forward bf16 b4 h16:4 q4100 d64 mask=\"kv_idx <= q_idx\"",
                         "backward bf16 b4 h16:4 q4100 d64 mask=\"kv_idx <= q_idx\""};
  std::vector<EmittedPass> passes{{"forward", {}}, {"backward", {}}};
  for (std::size_t pass = 0; pass < 2; ++pass) {
    for (const auto& [arch, multiprocessors] : devices)
      passes[pass].recordings.push_back(record(problem_of(lines[pass]), arch, "", multiprocessors));
  }
  test::EmittedProgram program(passes, std::string(FOVEAL_SOURCE_DIR) + "/tests/cuda/mock_driver.c");
  const auto grids_on = [&](int major, int minor, int multiprocessors) {
    program.find<void(int, int, int)>("mock_set_device")(major, minor, multiprocessors);
    EXPECT_EQ(program.load(), 0);
    program.find<void()>("mock_clear_log")();
    std::map<std::string, void*> addresses;
    for (const EmittedPass& pass : passes)
      for (const Recording::Block& block : pass.recordings[0].blocks) addresses[block.name] = reinterpret_cast<void*>(0x1000);
    std::vector<std::string> grids;
    for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(program.run(addresses, reinterpret_cast<void*>(0x1000), nullptr, pass), 0);
    const std::string log = program.find<const char*()>("mock_log")();
    for (std::size_t at = 0; (at = log.find("grid ", at)) != std::string::npos; ++at)
      grids.push_back(log.substr(at + 5, log.find(" threads", at) - at - 5));
    EXPECT_EQ(program.unload(), 0);
    EXPECT_EQ(program.find<int()>("mock_modules")(), 0) << "only what was loaded is unloaded";
    return grids;
  };
  const auto grids_of = [&](std::size_t device) {
    std::vector<std::string> grids;
    for (const EmittedPass& pass : passes)
      for (const auto& step : pass.recordings[device].steps)
        if (const auto* launch = std::get_if<Recording::Launch>(&step))
          grids.push_back(std::to_string(launch->grid[0]) + " " + std::to_string(launch->grid[1]) + " " + std::to_string(launch->grid[2]));
    return grids;
  };
  EXPECT_EQ(grids_on(9, 0, 132), grids_of(0));
  EXPECT_EQ(grids_on(9, 0, 114), grids_of(1));
  EXPECT_NE(grids_of(0), grids_of(1)) << "the grid follows the device";
  EXPECT_EQ(grids_on(8, 9, 142), grids_of(2)) << "the newest code that it runs";
  EXPECT_EQ(grids_on(8, 6, 82), grids_of(2)) << "no pass needs all its CTAs at once";
  EXPECT_EQ(grids_on(8, 0, 108), grids_of(3));
  for (const auto& [major, minor] : {std::pair{7, 5}, {10, 0}, {9, 1}}) {
    program.find<void(int, int, int)>("mock_set_device")(major, minor, 132);
    EXPECT_EQ(program.load(), 209) << major << "." << minor;
  }
}

TEST_F(EmitC, TheProgramOfTheDocumentationCompiles) {
  std::ifstream in(std::string(FOVEAL_SOURCE_DIR) + "/docs/emit.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  const std::size_t begin = page.find("```c\n") + 5, end = page.find("```\n", begin);
  ASSERT_LT(begin, end);
  const std::size_t command = page.find("`cc ") + 1, command_end = page.find('`', command);
  ASSERT_LT(command, command_end);
  const EmittedC emitted =
      emit_c({{"forward", {record(problem_of("forward bf16 b2 h8:2 q256 d128 mask=\"kv_idx <= q_idx\""), "sm_90a", "")}}}, "attention");
  const test::OwnFolder folder;
  std::filesystem::create_directory(folder / "kernels");
  std::ofstream(folder / "kernels/attention.h") << emitted.header;
  std::ofstream(folder / "kernels/attention.c") << emitted.source;
  std::ofstream(folder / "program.c") << page.substr(begin, end - begin) << "int main(void) { return 0; }\n";
  const std::string there = "cd " + folder.path().string() + " && ";
  for (const char* compiler : {"cc -std=c11", "c++ -x c++ -std=c++17"}) {
    const std::string strict = there + compiler + " -Ikernels -Wall -Wextra -Wpedantic -Werror -fsyntax-only program.c";
    EXPECT_EQ(std::system(strict.c_str()), 0) << strict;
  }
  const std::string driver = there + "cc -shared -fPIC " + FOVEAL_SOURCE_DIR + "/tests/cuda/mock_driver.c -o libcuda.so";
  ASSERT_EQ(std::system(driver.c_str()), 0);
  const std::string whole = there + "LIBRARY_PATH=. " + page.substr(command, command_end - command);
  EXPECT_EQ(std::system(whole.c_str()), 0) << whole;
}

TEST_F(EmitC, TheHeaderSaysForWhomItIsAndWhatItTakes) {
  const auto recorded = [](const char* line) {
    std::vector<Recording> recordings;
    for (const int count : {132, 78}) recordings.push_back(record(problem_of(line), "sm_90a", "", count));
    recordings.push_back(record(problem_of(line), "sm_80", "", 108));
    return emit_c({{"forward", recordings}}, "attention").header;
  };
  const std::string header = recorded("forward bf16 b1 h2 q64 d64 dropout=0.1:7");
  const std::string devices =
      "     sm_90a, made for 132 and 78 multiprocessors; devices with fewer run the last\n"
      "     sm_80, made for 108 multiprocessors; devices with fewer run it too\n";
  EXPECT_NE(header.find(devices), std::string::npos) << header;
  EXPECT_NE(header.find("const void* rng_state; /* in: seed and offset of dropout, i64 [2], strides [1] */"), std::string::npos) << header;
}

TEST_F(EmitC, APlanForAGpuThatIsNotHereIsExplained) {
  for (const char* line :
       {"forward bf16 b1 h2 q512 d64 mask=\"kv_idx <= q_idx\"", "backward bf16 b1 h2 q512 d64 mask=\"kv_idx <= q_idx\""}) {
    for (const char* arch : {"sm_90", "sm_80"}) {
      const Explanation e = explain(problem_of(line), arch, "");
      EXPECT_EQ(e.kernel.substr(0, 9), std::string(arch) == "sm_90" ? "cuda.sm90" : "cuda.sm80");
      EXPECT_GT(e.flops, e.flops_nominal) << e.to_string();
      EXPECT_GT(e.flops_nominal, 0) << e.to_string();
      EXPECT_GT(e.tiles_full, 0) << e.to_string();
      EXPECT_EQ(e.schedule.rows.empty(), std::string(arch) == "sm_80") << e.to_string();
    }
  }
  EXPECT_NE(explain(problem_of("forward bf16 b1 h64 q4096 d64"), "sm_90", "", 132).schedule.teams,
            explain(problem_of("forward bf16 b1 h64 q4096 d64"), "sm_90", "", 78).schedule.teams);
}

TEST_F(EmitC, Sm90MeansSm90a) {
  const auto p = problem::problem_of(problem::parse_line("forward bf16 b1 h2 q64 d64"), {DeviceKind::cuda, 0});
  for (const auto& source : kernels_of(p, "sm_90", "")) EXPECT_EQ(source.arch, "sm_90a");
}

TEST_F(EmitC, NamesMustBeIdentifiersAndDiffer) {
  const Recording recording = record(problem_of("forward bf16 b1 h1 q64 d64"), "sm_80", "");
  for (const char* name : {"", "2nd", "a-b", "a b"}) {
    EXPECT_THROW(emit_c({{"forward", {recording}}}, name), Error) << name;
    EXPECT_THROW(emit_c({{name, {recording}}}, "small"), Error) << name;
  }
  EXPECT_THROW(emit_c({{"load", {recording}}}, "small"), Error);
  EXPECT_THROW(emit_c({{"one", {recording}}, {"one", {recording}}}, "small"), Error);
  EXPECT_THROW(emit_c({{"one", {recording}}, {"One", {recording}}}, "small"), Error);  // their macros would be the same
  for (const char* taken : {"int", "class", "xor", "_Bool", "a__b", "linux", "size_t"})
    EXPECT_THROW(emit_c({{"one", {recording}}}, taken), Error) << taken;
  EXPECT_THROW(emit_c({{"F", {recording}}, {"F_BATCH", {recording}}}, "SMALL"), Error);  // a macro of the first is the second's name
  EXPECT_THROW(emit_c({{"H", {recording}}}, "SMALL"), Error);                            // the header's guard
  const EmittedC emitted = emit_c({{"forward", {recording}}}, "small");
  EXPECT_NE(emitted.header.find("int small_forward(const struct small* loaded, const struct small_forward_buffers* buffers"),
            std::string::npos);
  EXPECT_NE(emitted.header.find("#define SMALL_FORWARD_SEQLEN_Q 64\n"), std::string::npos);
}

}  // namespace
}  // namespace foveal::cuda
