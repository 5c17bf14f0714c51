#pragma once
// Tests that compile kernels: NVRTC from the repository's own .venv when there is one; skipped where no NVRTC is found.
#include <gtest/gtest.h>

#include <filesystem>

#include "cuda/jit/disk_cache.h"
#include "cuda/jit/nvrtc.h"

namespace foveal::test {

class NeedsNvrtc : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto venv = std::filesystem::path(FOVEAL_SOURCE_DIR) / ".venv";
    if (std::filesystem::is_directory(venv)) cuda::jit::set_nvrtc_path(venv.string());
  }
  void SetUp() override {
    if (!cuda::jit::nvrtc_unavailable().empty()) GTEST_SKIP() << cuda::jit::nvrtc_unavailable();
  }
};

}  // namespace foveal::test
