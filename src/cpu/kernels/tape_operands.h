// What a tape program's steps read and write: arrays of the tile, of its lanes, keys and diagonals, and uniform values. They differ only in
// the stride between rows and in whether the vector moves along the lanes, so that one loop over rows of vectors serves every step.
#pragma once
#include "cpu/kernels/vector.h"
#include "cpu/tape_code.h"

namespace foveal::cpu {
namespace {

using Int = std::int32_t;
using Int64 = std::int64_t;
constexpr int kWords = kVectorBytes / 4, kLongs = kVectorBytes / 8;
using W = Vec<Int, kWords>;
using L = Vec<Int64, kLongs>;

/// An operand at the first row of the step: byte stride of rows, and 1 where elements follow the lanes (0: one vector serves all lanes).
struct TapeRef {
  char* p;
  std::ptrdiff_t row;
  std::ptrdiff_t lane;
};

/// Not a template of the tile's type: its members need no qualification in the classes that derive from it.
class TapeOperands {
 protected:
  explicit TapeOperands(const TapeCall& call)
      : call_(call), frame_(*call.frame), slots_(tape_slots(frame_.keys, call.lanes, call.program->strip_element)) {
    const TapeProgram& program = *call.program;
    char* at = call.scratch;
    const auto carve = [&](Space space, int row, int lane) {
      place(space) = {at, static_cast<std::ptrdiff_t>(slots_[space]), 0, row, lane};
      at += slots_[space] * static_cast<std::size_t>(program.slots[slot_space(space)]);
    };
    carve(Space::uniform, 0, 0);
    carve(Space::lane, 0, 1);
    carve(Space::key, 1, 1);
    carve(Space::key_broadcast, 16, 0);
    carve(Space::diagonal, 0, 1);
    carve(Space::strip, call.lanes, 1);
    const auto bind = [&](Space space, const void* data, std::ptrdiff_t slot, std::ptrdiff_t first, std::ptrdiff_t row,
                          std::ptrdiff_t lane) {
      place(space) = {const_cast<char*>(static_cast<const char*>(data)), slot, first, row, lane};
    };
    static constexpr char zeros[kVectorBytes] = {};  // what a step loads for operands that it does not have
    bind(Space::none, zeros, 0, 0, 0, 0);
    bind(Space::constant, program.constants, tape_constant_distance, 0, 0, 0);
    bind(Space::lane_q, frame_.q_idx, 0, call.first_lane, 0, 1);
    bind(Space::lane_head, frame_.head, 0, call.first_lane, 0, 1);
    bind(Space::input, call.input, 0, call.first_lane, frame_.ld, 1);
    bind(Space::output, call.output, 0, call.first_lane, frame_.ld, 1);
  }

  /// Where the values of a space lie: the stride of slots in bytes, the first element and the stride of rows in elements.
  struct Place {
    char* base;
    std::ptrdiff_t slot, first, row, lane;
  };
  Place& place(Space space) { return places_[static_cast<int>(space)]; }

  void move_to_row(int row) {
    place(Space::key).first = row;
    place(Space::input).first = place(Space::output).first = call_.first_lane + static_cast<std::ptrdiff_t>(row) * frame_.ld;
  }

  template <class T>
  TapeRef ref(TapeOperand operand) const {
    const Place& p = places_[static_cast<int>(operand.space)];
    constexpr std::ptrdiff_t size = sizeof(T);
    return {p.base + operand.slot * p.slot + p.first * size, p.row * size, p.lane};
  }

  /// out = fn(a, b, c) over the rows and columns of the step, N elements at a time. fn ignores the operands that the step does not have.
  template <class Out, class A, class B, class C, int N, class Fn>
  void map(const TapeStep& step, Fn fn) {
    const TapeRef out = ref<Out>(step.out), a = ref<A>(step.a), b = ref<B>(step.b), c = ref<C>(step.c);
    int rows = rows_;
    std::ptrdiff_t columns = columns_;
    const auto dense = [columns](const TapeRef& r, std::ptrdiff_t size) { return r.row == columns * size * r.lane; };
    if (rows > 1 && dense(out, sizeof(Out)) && dense(a, sizeof(A)) && dense(b, sizeof(B)) && dense(c, sizeof(C))) {
      columns *= rows;
      rows = 1;
    }
    const std::ptrdiff_t step_a = a.lane * N * sizeof(A), step_b = b.lane * N * sizeof(B), step_c = c.lane * N * sizeof(C);
    for (int r = 0; r < rows; ++r) {
      char* to = out.p + r * out.row;
      const char *pa = a.p + r * a.row, *pb = b.p + r * b.row, *pc = c.p + r * c.row;
      for (std::ptrdiff_t i = 0; i < columns; i += N) {
        store(to, fn(load<Vec<A, N>>(pa), load<Vec<B, N>>(pb), load<Vec<C, N>>(pc)));
        to += N * sizeof(Out);
        pa += step_a;
        pb += step_b;
        pc += step_c;
      }
    }
  }

  template <class T>
  void fill(const TapeStep& step, T value) {
    T* out = reinterpret_cast<T*>(ref<T>(step.out).p);
    for (std::ptrdiff_t i = 0; i < columns_; ++i) out[i] = value;
  }
  void count(const TapeStep& step, Int first, Int by) {
    Int* out = reinterpret_cast<Int*>(ref<Int>(step.out).p);
    for (std::ptrdiff_t i = 0; i < columns_; ++i) out[i] = first + by * static_cast<Int>(i);
  }

  /// A key value, repeated along the lanes.
  template <class T>
  void broadcast(const TapeStep& step) {
    const T* from = reinterpret_cast<const T*>(ref<T>(step.a).p);
    T* to = reinterpret_cast<T*>(ref<T>(step.out).p);
    for (int r = 0; r < rows_; ++r, to += 16)
      for (int i = 0; i < 16; ++i) to[i] = from[r];
  }

  const TapeCall& call_;
  const TileFrame& frame_;
  const TapeSlots slots_;
  int rows_ = 1;  ///< extent of the step
  std::ptrdiff_t columns_ = 0;

 private:
  Place places_[static_cast<int>(Space::output) + 1];
};

}  // namespace
}  // namespace foveal::cpu
