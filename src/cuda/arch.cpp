#include "cuda/arch.h"

#include <charconv>
#include <map>
#include <string_view>

#include "base/check.h"
#include "cuda/tune/sm90.h"

namespace foveal::cuda {

namespace {

/// The multiprocessors of each architecture's cards, the most first.
const std::map<int, std::vector<int>>& cards() {
  static const std::map<int, std::vector<int>> all{
      {80, {108, 56}},            // A100, A30
      {86, {84, 72, 46, 28}},     // A40 and RTX A6000, A10, RTX 3070, RTX 3060
      {87, {16, 8}},              // AGX Orin, Orin NX
      {89, {142, 128, 76, 58}},   // L40, RTX 4090, RTX 4080, L4
      {90, {132, 114, 78}},       // H100 and H200 SXM, H100 PCIe, H20
      {100, {148}},               // B200
      {103, {148}},               // B300
      {110, {20}},                // Jetson Thor
      {120, {188, 170, 84, 48}},  // RTX PRO 6000, RTX 5090, RTX 5080, RTX 5070
      {121, {48}},                // GB10
  };
  return all;
}

}  // namespace

int capability_of(const std::string& arch) {
  int capability = 0;
  const char *const end = arch.data() + arch.size(), *rest = end;
  if (arch.starts_with("sm_")) rest = std::from_chars(arch.data() + 3, end, capability).ptr;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));  // of code for one architecture, or for its family
  const bool suffix_exists = suffix.empty() || (suffix == "a" && capability >= 90) || (suffix == "f" && capability >= 100);
  if (suffix_exists && cards().contains(capability)) return capability;
  std::string known;
  for (const auto& [each, multiprocessors] : cards()) known += base::join(known.empty() ? "sm_" : ", sm_", each);
  base::fail(ErrorCode::invalid_argument, "arch: ", arch, "; expected one of ", known,
             ", or with the suffix of one architecture or its family, such as sm_90a");
}

std::vector<int> multiprocessors_of(const std::string& arch) { return cards().at(capability_of(arch)); }

driver::DeviceFacts facts_of_arch(const std::string& arch, int multiprocessors) {
  driver::DeviceFacts facts{
      .name = arch, .major = 0, .minor = 0, .multiprocessors = 0, .shared_bytes_per_block = 0, .l2_bytes = 0, .context = nullptr};
  const int capability = capability_of(arch);
  facts.major = capability / 10, facts.minor = capability % 10;
  const bool large = facts.minor == 0 || capability == 87 || capability == 103;
  facts.shared_bytes_per_block = !large || facts.major >= 12 ? 101376 : facts.major == 8 ? 166912 : sm90_shared_limit;
  facts.multiprocessors = multiprocessors > 0 ? multiprocessors : multiprocessors_of(arch)[0];
  facts.l2_bytes = std::size_t{40} << 20;
  return facts;
}

}  // namespace foveal::cuda
