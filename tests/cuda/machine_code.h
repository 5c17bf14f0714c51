#pragma once
// Which instructions a compiled kernel consists of: for tests that the compiler chose those that the kernel was written for, in an order
// that is safe.
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace foveal::test {

/// The low nine bits of an instruction of sm_80 to sm_90, as nvdisasm prints them beside these names.
enum Instruction : int {
  FFMA = 0x023,        ///< multiply-add
  MUFU = 0x108,        ///< special functions
  HMMA = 0x03c,        ///< mma.sync on 16-bit types, and on tf32
  LDSM = 0x03b,        ///< ldmatrix
  LDG = 0x181,         ///< load from global memory
  LDGSTS = 0x1ae,      ///< cp.async
  HGMMA = 0x1f0,       ///< wgmma
  UTMALDG = 0x1b4,     ///< TMA: a box of a tensor map
  UBLKCP = 0x1ba,      ///< TMA: a run of bytes
  USETMAXREG = 0x1c8,  ///< setmaxnreg
  REDG = 0x1a6,        ///< addition in global memory
  LDS = 0x184,         ///< load from shared memory
  FENCE = 0x1c6,       ///< fence.proxy.async
  WARPSYNC = 0x148,    ///< before what all lanes do together, where the compiler thinks that they may have parted
  ERRBAR = 0x1ab,      ///< waits for all earlier accesses to memory, of the GPU or the cluster
  BRA = 0x147,
  EXIT = 0x14d,
  RET = 0x150,
};

/// visit(low, high) for the words of each instruction of a cubin with one kernel, in the order of the text.
template <class Visit>
void each_instruction(const std::string& cubin, Visit&& visit) {
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return;
  std::memcpy(&header, cubin.data(), sizeof header);
  const auto section = [&](int i) {
    Elf64_Shdr found;
    std::memcpy(&found, cubin.data() + header.e_shoff + static_cast<std::size_t>(i) * header.e_shentsize, sizeof found);
    return found;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (int i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr text = section(i);
    if (std::strncmp(cubin.data() + names.sh_offset + text.sh_name, ".text.", 6) != 0) continue;
    for (std::size_t at = 0; at + 16 <= text.sh_size; at += 16) {
      std::uint64_t word[2];
      std::memcpy(word, cubin.data() + text.sh_offset + at, sizeof word);
      visit(word[0], word[1]);
    }
  }
}

/// How often each occurs.
inline std::map<int, int> instructions_of(const std::string& cubin) {
  std::map<int, int> counts;
  each_instruction(cubin, [&](std::uint64_t low, std::uint64_t) { ++counts[static_cast<int>(low & 0x1ff)]; });
  return counts;
}

/// How many arrivals at a barrier of shared memory come while loads from shared memory are under way, with no fence between. What they load
/// may then be overwritten by TMA. A load names one of six scoreboards, on which whatever needs its result waits.
inline int arrivals_amid_loads(const std::string& cubin) {
  int arrivals = 0;
  unsigned under_way = 0;  // one bit for each scoreboard
  each_instruction(cubin, [&](std::uint64_t low, std::uint64_t high) {
    const auto control = static_cast<unsigned>(high >> 41);
    const unsigned written = control >> 5 & 7, awaited = control >> 11 & 63;
    const int instruction = static_cast<int>(low & 0x1ff);
    const bool always = (low >> 12 & 15) == 7;
    under_way &= ~awaited;
    if ((low & 0xfff) == 0x9a7 && under_way != 0) ++arrivals;  // SYNCS.ARRIVE
    if (instruction == FENCE) under_way = 0;
    if ((instruction == LDS || instruction == LDSM) && written < 6) under_way |= 1u << written;
    const bool goes = instruction == BRA && (high >> 23 & 31) == 7;  // without a condition of its own
    if (always && (goes || instruction == EXIT || instruction == RET)) under_way = 0;
  });
  return arrivals;
}

}  // namespace foveal::test
