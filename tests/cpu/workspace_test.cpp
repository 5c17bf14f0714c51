// Layouts of a workspace: what is declared at planning stands in its place at run time.
#include "cpu/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace foveal::cpu {
namespace {

struct Sums {
  float *dk = nullptr, *dv = nullptr;
  int shares = 3;
};
struct Memory {
  void* lists = nullptr;
};
struct More : Memory {
  double* rows = nullptr;
  Sums sums;
  void* weights = nullptr;
};

TEST(Layout, PlacesArraysOneBehindTheOther) {
  Layout<Sums> sums;
  sums.array(&Sums::dk, 40);
  sums.array(&Sums::dv, 1);
  Layout<More> layout;
  layout.array(&More::rows, 3);
  layout.part(&More::sums, sums);
  layout.bytes(&More::lists, 1);
  layout.share(&More::weights, &More::rows);
  EXPECT_EQ(sums.size(), 256u + 128u);
  EXPECT_EQ(layout.size(), 128u + sums.size() + 128u);

  alignas(field_alignment) char memory[1024];
  More more;
  layout.place(memory, more);
  EXPECT_EQ(reinterpret_cast<char*>(more.rows), memory);
  EXPECT_EQ(reinterpret_cast<char*>(more.sums.dk), memory + 128);
  EXPECT_EQ(reinterpret_cast<char*>(more.sums.dv), memory + 128 + 256);
  EXPECT_EQ(more.lists, memory + 128 + sums.size());
  EXPECT_EQ(more.weights, memory);
  EXPECT_EQ(more.sums.shares, 3);
}

}  // namespace
}  // namespace foveal::cpu
