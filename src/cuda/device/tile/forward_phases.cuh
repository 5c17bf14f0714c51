#pragma once
// The phases of a step of the forward kernels: products, scores, softmax, values. A step takes the scores of a tile beside the values of the tile before, so the
// tensor cores have S' = Q K'^T and O += P V under way together; kernels/forward_sm90.cuh and decode_sm90.cuh put the phases in order.
#include "tile/forward_scores.cuh"

namespace foveal::device {

/// Outside the loop over full tiles causal rows have partial ones only, but for a few of rows beyond the keys: the text of a score for full tiles, most of what there
/// is to compile, stands once. Without a score there is little of it, and registers are short.
constexpr bool kPartialOutside = kScoresToMake && (kSource == TileSource::causal || kSource == TileSource::band);

/// Where a warpgroup is in its tasks.
struct Place {
  int round, next_round = -1;  // of the task whose output is accumulated, none before the first; of the one whose scores are computed
  ForwardTask next;            // the latter
  u32 tile = 0, query = 0;     // uses of the rings
  bool partial, new_task;
  bool started;             // is there a task before the first tile of the next one?
  bool accumulate = false;  // is O of this task?
  bool leader;              // of its group

  FOVEAL_DEVICE explicit Place(bool leader) : leader(leader) { next.walk.stop(); }
};

/// What it keeps in registers from one step to the next. As one struct with the above they were other machine code.
struct Registers {
  float scores[kBlockKv / 2];
  float acc[kDimV / 2];
  u32 p[kBlockKv / 4] = {};
  float rescale[2];
  bool rescales, lasted = false;
  bool guesses, guessing = false;  // those of this task so far were right; this tile's
  Stage stage;
  AheadValues ahead;
  HeadValues head;
  OnlineSoftmax softmax;
};

template <class End>
struct ForwardPhases : End {
  using End::args, End::rings, End::group, End::thread, End::exponent;
  using End::End;

  // ---- tasks ----

  FOVEAL_DEVICE Ending end(int round, OnlineSoftmax& softmax) const {
    if (kAnyExponent && fails(softmax) && rings.maxima() != Maxima::all) rings.do_again(round);
    ForwardTask work;
    work.at(round, args);
    return End::end(work, softmax);
  }
  /// Has the task to be done again? kOffsetsInScores: also where a row has no number as a score. Where it has one, those that are too low for raw scores are -inf, which is
  /// what is left of their probabilities.
  FOVEAL_DEVICE static bool fails(const OnlineSoftmax& softmax) {
    const bool empty = softmax.reference[0] == -infinity() || softmax.reference[1] == -infinity();
    return softmax.overflows() || (kOffsetsInScores && empty);
  }

  FOVEAL_DEVICE void write_empty(const ForwardTask& work) const {
    OnlineSoftmax nothing;
    nothing.reset();
    const float zeros[kDimV / 2] = {};
    End::write_out(End::end(work, nothing), zeros);
  }

  /// The next kv tile of this task, or the first one of the next task; tasks without tiles are written here.
  FOVEAL_DEVICE bool advance(ForwardTask& work, int& round, bool& partial, bool& new_task) const {
    new_task = false;
    while (!work.next_tile(args, partial)) {
      if (new_task) write_empty(work);
      if (!work.next(round, args, rings)) return false;
      new_task = true;
    }
    return true;
  }

  /// The task before ends, if there is one, and the next one's queries come.
  FOVEAL_DEVICE Ending begin_task(Place& at, Registers& r) const {
    Ending ending;
    ending.rows = 0;
    if (at.started) {
      ending = end(at.round, r.softmax);
      if (!kGivesQueriesEarly && at.leader) rings.query.release(at.query);
      ++at.query;
      ++at.tile;
    }
    r.softmax.reset();
    r.head = End::of_head(at.next);
    r.guesses = r.head.highest_sum > 0;
    rings.query.wait_full(at.query);
    return ending;
  }

  FOVEAL_DEVICE void end_last_task(Place& at, Registers& r) const {
    if (at.round < 0) return;
    at.started = true;
    issue_values(at, r, at.tile);
    wgmma_wait<0>();
    wgmma_pin(r.acc);
    End::write_out(end(at.round, r.softmax), r.acc);
  }

  // ---- products ----

  /// Before the first run: group 0 begins. A run leaves the turns as it found them.
  FOVEAL_DEVICE void open_turns() const {
    if (kTakeTurns && group == kConsumers - 1) named_barrier_arrive(kTurnBarrier, 256);
  }
  FOVEAL_DEVICE void await_turn() const {
    if constexpr (kTakeTurns) named_barrier_sync(kTurnBarrier + group, 256);
  }
  FOVEAL_DEVICE void pass_turn() const {
    if constexpr (kTakeTurns) named_barrier_arrive(kTurnBarrier + (group + 1) % kConsumers, 256);
  }

  /// S' = Q K'^T
  FOVEAL_DEVICE void issue_scores(Place& at, Registers& r) const {
    wgmma_pin(r.scores);
    wgmma_fence();
    if constexpr (kOffsetsAreColumns) rings.key_columns(at.tile).multiply(r.scores, r.head.columns);
    multiply_rows<Element, kBlockKv, kDim>(r.scores, uniform(rings.query_tile(at.query)), 64 * group, uniform(rings.key_tile(at.tile)), 0,
                                           kOffsetsFirst || kOffsetsAreColumns);
    wgmma_commit();
  }
  /// O += P V. Before the first tile there is none: its product is of what happens to lie there and counts for nothing, which costs less than a text of the first
  /// step to compile.
  FOVEAL_DEVICE void issue_values(Place& at, Registers& r, u32 use) const {
    if (at.started) rings.value.wait_full(use);
    wgmma_pin(r.acc);
    wgmma_fence();
    multiply_registers<Element, kDimV, kBlockKv>(r.acc, r.p, uniform(rings.value_tile(use)), at.accumulate);
    wgmma_commit();
  }

  // ---- scores ----

  /// S' is there.
  FOVEAL_DEVICE void take_products(Place& at, Registers& r) const {
    if (at.leader) rings.key.release(at.tile);
    if (kGivesQueriesEarly && at.leader && at.next.walk.is_last()) rings.query.release(at.query);
    wgmma_pin(r.scores);
  }
  /// Products to scores, the maxima of whose rows are known then; kOrdered: once their exponentials are taken.
  FOVEAL_DEVICE void take_scores(Place& at, Registers& r, bool partial) const {
    if constexpr (kHasLines && kScoresToMake) rings.line_values.wait_full(at.tile);
    if constexpr (kPairTiles > 0 && kScoresToMake) rings.pairs.ring.wait_full(at.tile);
    r.stage = Stage::scores;
    r.rescales = false;
    if (partial) {
      const bool clears =
          (kMaskProgram && !at.next.walk.covered) || (kRaggedKv && (at.next.walk.tile + 1) * kBlockKv > at.next.sequence.len_kv);
      const u32 kept = clears ? rings.base + kShared.kept : 0;
      if (kMaskProgram && clears) {
        if (threadIdx.x - 128 < 4 * kKeptWords) store_word(kept + 4 * (threadIdx.x - 128), 0);
        named_barrier_sync(kKeptBarrier, 128 * kConsumers);
      }
      r.stage = transform<true>(at, r, kept);
      if (clears) {
        rings.value.wait_full(at.tile);
        End::clear_values(at.next, rings.value_tile(at.tile), kept);
      }
    } else if (kGuesses || (kSumScore && kAnyExponent && End::lasts(r.softmax))) {
      r.stage = Stage::products;
    } else if constexpr (kScoresToMake) {
      r.stage = transform<false>(at, r, 0);
    }
    if (!kOrdered && r.stage == Stage::scores) follow_maxima(r);
  }
  /// Those that do not last.
  FOVEAL_DEVICE void follow_maxima(Registers& r) const {
    if (!(kLooksAhead ? r.lasted : End::lasts(r.softmax))) r.rescales = End::follow_maximum(r.softmax, r.scores, r.rescale);
  }
  template <bool partial>
  FOVEAL_DEVICE Stage transform(Place& at, Registers& r, u32 kept) const {
    return End::template transform<partial>(r.scores, r.softmax, r.rescales, r.rescale, r.head, r.ahead, at.next, at.tile, kept);
  }

  // ---- softmax ----

  FOVEAL_DEVICE void take_exponentials(Place& at, Registers& r) const {
    if (r.stage == Stage::scores) {
      if constexpr (kOrdered) follow_maxima(r);  // under the same condition: asked twice, every tile paid for a branch more
      r.softmax.add(r.scores, exponent, !kLooksAhead || !r.lasted);
    }
    if constexpr (kSumScore && kAnyExponent) {
      if (r.stage == Stage::products) {
        End::template transform<false, Stage::probabilities>(r.scores, r.softmax, AnyTanhAhead{}, r.head, r.ahead, at.next, at.tile, 0);
      }
    }
    if constexpr (kHasLines && kScoresToMake) release(rings.line_values, at.tile);
    if constexpr (kDropout) End::drop(r.scores, at.next);
  }
  /// P, of products where a guess is right, else of scores.
  FOVEAL_DEVICE void take_probabilities(Place& at, Registers& r) const {
    if (kGuesses && r.stage == Stage::products) {
      if (r.guessing) {
        r.guesses = guess_probabilities<Element>(r.p, r.softmax, r.scores, r.head.exponents, r.head.highest_sum);
        if (r.guesses) return;
      }
      r.stage = transform<false>(at, r, 0);
      if (r.stage == Stage::scores) r.rescales = End::follow_maximum(r.softmax, r.scores, r.rescale);
      if (r.rescales) rescale_out(r);
    }
    take_exponentials(at, r);
    pack_fragment<Element>(r.p, r.scores);
  }

  // ---- values ----

  FOVEAL_DEVICE static void rescale_out(Registers& r) {
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) r.acc[i] *= r.rescale[fragment_row(i)];
  }
  /// O is there: of this task, and the scores of the next tile may want it rescaled; or of the one before, and is written.
  /// inside: a step's tile is full, and of the same task as the one before.
  template <bool inside, bool scores_are_there>
  FOVEAL_DEVICE void take_values(Place& at, Registers& r, const Ending& ending) const {
    wgmma_pin(r.acc);
    if (at.leader && at.started) rings.value.release(at.tile - 1);
    at.accumulate = inside || !at.new_task;
    if (!inside && at.new_task) {
      End::write_out(ending, r.acc);
    } else if (scores_are_there && r.rescales) {
      rescale_out(r);
    }
  }
};

}  // namespace foveal::device
