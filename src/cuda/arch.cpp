#include "cuda/arch.h"

#include <charconv>
#include <map>
#include <string_view>

#include "base/check.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/tune/sm80.h"
#include "cuda/tune/sm90.h"

namespace foveal::cuda {

namespace {

/// Of an architecture.
struct Cards {
  std::size_t shared_bytes;          ///< that a CTA may have
  std::vector<int> multiprocessors;  ///< the most first
};
const std::map<int, Cards>& cards() {
  constexpr std::size_t small = 101376, ampere = 166912;
  static const std::map<int, Cards> all{
      {80, {ampere, {108, 56}}},                  // A100, A30
      {86, {small, {84, 72, 46, 28}}},            // A40 and RTX A6000, A10, RTX 3070, RTX 3060
      {87, {ampere, {16, 8}}},                    // AGX Orin, Orin NX
      {89, {small, {142, 128, 76, 58}}},          // L40, RTX 4090, RTX 4080, L4
      {90, {sm90_shared_limit, {132, 114, 78}}},  // H100 and H200 SXM, H100 PCIe, H20
      {100, {sm90_shared_limit, {148}}},          // B200
      {103, {sm90_shared_limit, {148}}},          // B300
      {110, {sm90_shared_limit, {20}}},           // Jetson Thor
      {120, {small, {188, 170, 84, 48}}},         // RTX PRO 6000, RTX 5090, RTX 5080, RTX 5070
      {121, {small, {48}}},                       // GB10
  };
  return all;
}

/// From here on code may be for one architecture ("a").
constexpr int first_with_suffix = 90;

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {.name = "sm90",
       .capability = 90,
       .later = false,
       .arch = "sm_90a",  // WGMMA and TMA, and every device of capability 9.0 has them
       .candidates = {&forward_sm90, &backward_sm90},
       .families = {Sm90ForwardConfig::family, Sm90BackwardConfig::family}},
      {.name = "sm80",
       .capability = 80,
       .later = true,
       .arch = "sm_80",
       .candidates = {&forward_sm80, &backward_sm80},
       .families = {sm80_family(Sm80Kernel::forward), sm80_family(Sm80Kernel::dq), sm80_family(Sm80Kernel::dkdv)}},
  };
  return all;
}

std::optional<std::string> Target::refuses(const driver::DeviceFacts& facts) const {
  if (runs_on(facts.capability())) return std::nullopt;
  return base::join(facts.name, " has compute capability ", facts.major, ".", facts.minor, "; needs ", capability / 10, ".",
                    capability % 10);
}

const Target& target_of(const std::string& name) {
  for (const Target& target : targets())
    if (name == target.name) return target;
  base::fail(ErrorCode::invalid_argument, "no target ", name, "; expected ", target_names(" or "));
}

std::string target_names(const std::string& separator) {
  std::string names;
  for (auto target = targets().rbegin(); target != targets().rend(); ++target)
    names += base::join(names.empty() ? "" : separator, target->name);
  return names;
}

std::string arch_of_device(int capability) { return base::join("sm_", capability, capability >= first_with_suffix ? "a" : ""); }

int capability_of(const std::string& arch) {
  int capability = 0;
  const char *const end = arch.data() + arch.size(), *rest = end;
  if (arch.starts_with("sm_")) rest = std::from_chars(arch.data() + 3, end, capability).ptr;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));  // of code for one architecture, or for its family
  const bool suffix_exists = suffix.empty() || (suffix == "a" && capability >= first_with_suffix) || (suffix == "f" && capability >= 100);
  if (suffix_exists && cards().contains(capability)) return capability;
  std::string known;
  for (const auto& [each, of_it] : cards()) known += base::join(known.empty() ? "sm_" : ", sm_", each);
  base::fail(ErrorCode::invalid_argument, "arch: ", arch, "; expected one of ", known,
             ", or with the suffix of one architecture or its family, such as sm_90a");
}

std::vector<int> multiprocessors_of(const std::string& arch) { return cards().at(capability_of(arch)).multiprocessors; }

driver::DeviceFacts facts_of_arch(const std::string& arch, int multiprocessors) {
  driver::DeviceFacts facts{
      .name = arch, .major = 0, .minor = 0, .multiprocessors = 0, .shared_bytes_per_block = 0, .l2_bytes = 0, .context = nullptr};
  const int capability = capability_of(arch);
  facts.major = capability / 10, facts.minor = capability % 10;
  facts.shared_bytes_per_block = cards().at(capability).shared_bytes;
  facts.multiprocessors = multiprocessors > 0 ? multiprocessors : multiprocessors_of(arch)[0];
  facts.l2_bytes = std::size_t{40} << 20;
  return facts;
}

}  // namespace foveal::cuda
