// Static objects of programs: expressions that are made before main(), in whatever order the linker has, and calls after it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "foveal/foveal.h"
#include "foveal/foveal_c.h"

namespace foveal {
namespace {

const Expr early_mask = causal() & window(3), early_score = symbols::score * 2.0, early_text = parse("where(head > 0, score, -inf)");

/// Both passes, and a wrong call of C, whose message is the thread's.
void make_calls() {
  std::vector<float> in(64 * 8, 0.1f), out(in.size()), gradient(in.size()), lse(64);
  const auto view = [](std::vector<float>& data) { return TensorView(data.data(), DType::f32, {1, 64, 1, 8}); };
  const TensorView rows(lse.data(), DType::f32, {1, 1, 64});
  const Attention attention{.score_mod = early_score, .mask = early_mask & parse("q_idx >= 0")};
  forward(attention, {.q = view(in), .k = view(in), .v = view(in)}, {.out = view(out), .lse = rows});
  backward(attention, {.q = view(in), .k = view(in), .v = view(in), .out = view(out), .lse = rows, .dout = view(in)},
           {.dv = view(gradient)});
  const bool right = std::abs(out[5] - 0.1f) < 1e-5f && foveal_run(nullptr, nullptr, nullptr, nullptr) == FOVEAL_INVALID_ARGUMENT &&
                     foveal_last_error()[0] != '\0';
  if (!right) std::_Exit(3);
}

struct CallsAtExit {
  bool wanted = false;
  ~CallsAtExit() {
    if (wanted) make_calls();
  }
};
CallsAtExit at_exit;

TEST(StaticObjects, MakeExpressionsBeforeMainAndCallsAfterIt) {
  EXPECT_EQ(to_string(early_score), "2.0 * score");
  EXPECT_EQ(early_text.type(), Type::real);
  make_calls();
  at_exit.wanted = true;  // a failure is one of the process
}

}  // namespace
}  // namespace foveal
