#pragma once
// Which instructions a compiled kernel consists of: for tests that the compiler chose those that the kernel was written for.
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
  UTMALDG = 0x1b4,     ///< copy engine: a box of a tensor map
  UBLKCP = 0x1ba,      ///< copy engine: a run of bytes
  USETMAXREG = 0x1c8,  ///< setmaxnreg
  REDG = 0x1a6,        ///< addition in global memory
};

/// How often each occurs in a cubin with one kernel.
inline std::map<int, int> instructions_of(const std::string& cubin) {
  std::map<int, int> counts;
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return counts;
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
      std::uint64_t low;
      std::memcpy(&low, cubin.data() + text.sh_offset + at, sizeof low);
      ++counts[static_cast<int>(low & 0x1ff)];
    }
  }
  return counts;
}

}  // namespace foveal::test
