// Emitted programs compile as C and ask the driver for what the plan asks: run against a driver that writes everything down.
#include "cuda/emit_c.h"

#include <cstring>

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
        base_.push_back(table);
        table += (block.bytes.size() + 255) / 256 * 256;
      } else {
        base_.push_back(reinterpret_cast<std::uint64_t>(block.name == "workspace" ? workspace : addresses.at(block.name)));
      }
    }
  }

  std::string load() const {
    std::string text;
    for (std::size_t k = 0; k < r_.kernels.size(); ++k) {
      text += "function " + std::to_string(k) + " " + r_.kernels[k]->entry + "\n";
      if (r_.shared_bytes[k] > 0) text += "attribute " + std::to_string(k) + ": 8 = " + std::to_string(r_.shared_bytes[k]) + "\n";
    }
    for (std::size_t b = 0; b < r_.blocks.size(); ++b) {
      if (!r_.blocks[b].name.empty()) continue;
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
    ASSERT_EQ(program.load(), 0) << text;
    ASSERT_EQ(program.run(addresses, workspace, reinterpret_cast<void*>(stream)), 0) << text;
    const Expected expected(recording, addresses, workspace);
    EXPECT_EQ(program.find<const char*()>("mock_log")(), expected.load() + expected.run()) << text;
    ASSERT_GT(recording.steps.size(), 0u);

    addresses.at("q") = static_cast<char*>(addresses.at("q")) + 4;
    EXPECT_EQ(program.run(addresses, workspace, nullptr), 1) << "an address that is not aligned";
    EXPECT_EQ(program.unload(), 0);
    EXPECT_EQ(program.find<int()>("mock_modules")(), 0);
  }
}

TEST_F(EmitC, Sm90MeansSm90a) {
  const auto p = problem::problem_of(problem::parse_line("forward bf16 b1 h2 q64 d64"), {DeviceKind::cuda, 0});
  for (const auto& source : kernels_of(p, "sm_90", "")) EXPECT_EQ(source.arch, "sm_90a");
}

TEST_F(EmitC, NamesMustBeIdentifiers) {
  const Recording recording = record(problem_of("forward bf16 b1 h1 q64 d64"), "sm_80", "");
  for (const char* name : {"", "2nd", "a-b", "a b"}) EXPECT_THROW(emit_c(recording, name), Error) << name;
  const EmittedC emitted = emit_c(recording, "small");
  EXPECT_NE(emitted.header.find("int small_run(const struct small* loaded, const struct small_buffers* buffers"), std::string::npos);
}

}  // namespace
}  // namespace foveal::cuda
