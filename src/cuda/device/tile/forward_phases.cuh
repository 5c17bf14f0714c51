#pragma once
// Phases of a mainloop step of the forward kernels: S = Q K^T, score_mod and mask, softmax, O += P V. A step processes the scores of one
// tile and the values of the previous one, so that the tensor cores have S' = Q K'^T and O += P V in flight; kernels/forward_sm90.cuh and
// decode_sm90.cuh order the phases.
#include "tile/forward_scores.cuh"

namespace foveal::device {

/// Causal rows have almost only partial tiles outside the loop over full tiles: handling the rest as partial too compiles the score for
/// full tiles, most of the code, only once. Without a score there is little to save, and registers are scarce.
constexpr bool kPartialOutside = kModifiesScores && (kSource == TileSource::causal || kSource == TileSource::band);

/// Does the last task of a CTA end in a step without scores? Otherwise in a copy of the code, which is more to compile. Not with tiles of
/// pairs, which leave few registers. Nor where guessed scores have several copies and partial tiles one more: the compiler would assume
/// that lanes diverge in the loop over full tiles.
constexpr bool kEndsInStep = kPairTiles == 0 && (!kGuesses || kPartialOutside);

/// Position of a warpgroup in its sequence of tasks and tiles.
struct MainloopState {
  int round, next_round = -1;  // the task being accumulated (none before the first), and the one whose scores are computed
  ForwardTask next;            // the task of next_round
  u32 tile = 0, query = 0;     // uses of the pipelines
  bool partial, new_task;
  bool started;             // is a task being accumulated?
  bool accumulate = false;  // does O accumulate, or start anew?
  bool leader;              // elected thread of the warpgroup

  FOVEAL_DEVICE explicit MainloopState(bool leader) : leader(leader) { next.walk.stop(); }
};

/// Register-resident state. One struct with the above gave different machine code.
struct Fragments {
  float scores[kBlockKv / 2];
  float acc[kDimV / 2];
  u32 p[kBlockKv / 4] = {};
  float rescale[2];
  bool rescales, max_held = false;
  bool guesses, guessing = false;  // did all guesses of this task hold; is this tile guessed?
  ScoreForm form;
  PairPrefetch prefetched;
  HeadConstants head;
  OnlineSoftmax softmax;
};

template <class Epilogue>
struct ForwardPhases : Epilogue {
  using Epilogue::args, Epilogue::pipelines, Epilogue::group, Epilogue::thread, Epilogue::exponent;
  using Epilogue::Epilogue;
  using EpilogueState = typename Epilogue::State;

  // ---- tasks ----

  FOVEAL_DEVICE EpilogueState begin_epilogue(int round, OnlineSoftmax& softmax) const {
    if (kWideRange && needs_redo(softmax) && pipelines.max_policy() != MaxPolicy::every_tile) pipelines.redo(round);
    ForwardTask work;
    work.at(round, args);
    return Epilogue::begin_epilogue(work, softmax);
  }
  /// Must the task be redone? With kOffsetsInScores also if a row has no finite score; finite ones that are too low for raw scores become
  /// -inf, and their probabilities 0.
  FOVEAL_DEVICE static bool needs_redo(const OnlineSoftmax& softmax) {
    const bool empty = softmax.reference[0] == -infinity() || softmax.reference[1] == -infinity();
    return softmax.overflows() || (kOffsetsInScores && empty);
  }

  FOVEAL_DEVICE void write_empty(const ForwardTask& work) const {
    OnlineSoftmax nothing;
    nothing.reset();
    if constexpr (kConfig.consumers < 3 && !kConfig.is_decode()) {
      Epilogue::write_zeros(Epilogue::begin_epilogue(work, nothing));
    } else {  // no longer; otherwise some registers would spill
      const float zeros[kDimV / 2] = {};
      Epilogue::write_out(Epilogue::begin_epilogue(work, nothing), zeros);
    }
  }

  /// Advances to the next kv tile of the task, or to the first one of the next task; tasks without tiles are written here.
  FOVEAL_DEVICE bool advance(ForwardTask& work, int& round, bool& partial, bool& new_task) const {
    new_task = false;
    while (!work.next_tile(args, partial)) {
      if (new_task) write_empty(work);
      if (!work.next(round, args, pipelines)) return false;
      new_task = true;
    }
    return true;
  }

  /// Starts the epilogue of the previous task, if any, and waits for the next one's queries. more: there is one.
  FOVEAL_DEVICE EpilogueState begin_task(MainloopState& state, Fragments& r, bool more = true) const {
    EpilogueState epilogue;
    epilogue.rows = 0;
    if (state.started) {
      epilogue = begin_epilogue(state.round, r.softmax);
      if (!kReleasesQueriesEarly && state.leader) pipelines.query.consumer_release(state.query);
      ++state.query;
      ++state.tile;
    }
    if (!more) return epilogue;
    r.softmax.reset();
    r.head = Epilogue::head_constants(state.next);
    r.guesses = r.head.highest_sum > 0;
    pipelines.query.consumer_wait(state.query);
    return epilogue;
  }

  FOVEAL_DEVICE void finish_last_task(MainloopState& state, Fragments& r) const {
    if (state.round < 0) return;
    state.started = true;
    issue_pv(state, r, state.tile);
    wgmma_wait<0>();
    wgmma_pin(r.acc);
    Epilogue::write_out(begin_epilogue(state.round, r.softmax), r.acc);
  }

  // ---- products ----

  /// FA3's warp scheduler barriers (ping-pong): warpgroup 0 goes first. A run leaves the barriers as it found them.
  FOVEAL_DEVICE void scheduler_barrier_init() const {
    if (kConfig.ping_pong && group == kConfig.consumers - 1) named_barrier_arrive(kSchedulerBarrier, 256);
  }
  FOVEAL_DEVICE void scheduler_barrier_sync() const {
    if constexpr (kConfig.ping_pong) named_barrier_sync(kSchedulerBarrier + group, 256);
  }
  FOVEAL_DEVICE void scheduler_barrier_arrive() const {
    if constexpr (kConfig.ping_pong) named_barrier_arrive(kSchedulerBarrier + (group + 1) % kConfig.consumers, 256);
  }

  /// S' = Q K'^T
  FOVEAL_DEVICE void issue_qk(MainloopState& state, Fragments& r) const {
    wgmma_pin(r.scores);
    wgmma_fence();
    if constexpr (kOffsetsAreColumns) pipelines.key_columns(state.tile).multiply(r.scores, r.head.columns);
    multiply_rows<Element, kBlockKv, kDim>(r.scores, uniform(pipelines.query_tile(state.query)), 64 * group,
                                           uniform(pipelines.key_tile(state.tile)), 0, kOffsetsFirst || kOffsetsAreColumns);
    wgmma_commit();
  }
  /// O += P V. The first step has no values yet: it multiplies whatever is in the buffer and drops the result, which is cheaper than
  /// compiling a separate first step.
  FOVEAL_DEVICE void issue_pv(MainloopState& state, Fragments& r, u32 use) const {
    if (state.started) pipelines.value.consumer_wait(use);
    wgmma_pin(r.acc);
    wgmma_fence();
    multiply_registers<Element, kDimV, kBlockKv>(r.acc, r.p, uniform(pipelines.value_tile(use)), state.accumulate);
    wgmma_commit();
  }

  // ---- scores ----

  /// S' has arrived: releases K, and Q after its last tile.
  FOVEAL_DEVICE void finish_qk(MainloopState& state, Fragments& r) const {
    if (state.leader) pipelines.key.consumer_release(state.tile);
    if (kReleasesQueriesEarly && state.leader && state.next.walk.is_last()) pipelines.query.consumer_release(state.query);
    wgmma_pin(r.scores);
  }
  /// Raw products -> scores, and the row maxima; with intra_warpgroup_overlap the maxima are left to exponentiate().
  FOVEAL_DEVICE void apply_score_mod(MainloopState& state, Fragments& r, bool partial) const {
    if constexpr (kHasLines && kModifiesScores) pipelines.line_values.consumer_wait(state.tile);
    if constexpr (kPairTiles > 0 && kModifiesScores) pipelines.pairs.pipeline.consumer_wait(state.tile);
    r.form = ScoreForm::scores;
    r.rescales = false;
    if (partial) {
      const bool clears =
          (kMaskProgram && !state.next.walk.covered) || (kRaggedKv && (state.next.walk.tile + 1) * kBlockKv > state.next.sequence.len_kv);
      const u32 kept = clears ? pipelines.base + kShared.kept : 0;
      if (kMaskProgram && clears) {
        if (threadIdx.x - 128 < 4 * kKeptWords) store_word(kept + 4 * (threadIdx.x - 128), 0);
        named_barrier_sync(kKeptBarrier, 128 * kConfig.consumers);
      }
      r.form = transform<true>(state, r, kept);
      if (clears) {
        pipelines.value.consumer_wait(state.tile);
        Epilogue::clear_values(state.next, pipelines.value_tile(state.tile), kept);
      }
    } else if (kGuesses || (kSumScore && kWideRange && Epilogue::max_holds(r.softmax))) {
      r.form = ScoreForm::products;
    } else if constexpr (kModifiesScores) {
      r.form = transform<false>(state, r, 0);
    }
    if (!kConfig.intra_warpgroup_overlap && r.form == ScoreForm::scores) update_max_if_needed(r);
  }
  /// Unless the current maxima can be kept.
  FOVEAL_DEVICE void update_max_if_needed(Fragments& r) const {
    if (!(kChecksMaxEarly ? r.max_held : Epilogue::max_holds(r.softmax))) r.rescales = Epilogue::update_max(r.softmax, r.scores, r.rescale);
  }
  template <bool partial>
  FOVEAL_DEVICE ScoreForm transform(MainloopState& state, Fragments& r, u32 kept) const {
    return Epilogue::template transform<partial>(r.scores, r.softmax, r.rescales, r.rescale, r.head, r.prefetched, state.next, state.tile,
                                                 kept);
  }

  // ---- softmax ----

  FOVEAL_DEVICE void exponentiate(MainloopState& state, Fragments& r) const {
    if (r.form == ScoreForm::scores) {
      if constexpr (kConfig.intra_warpgroup_overlap)
        update_max_if_needed(r);  // same condition as here: tested twice, it cost a branch a tile
      r.softmax.add(r.scores, exponent, !kChecksMaxEarly || !r.max_held);
    }
    if constexpr (kSumScore && kWideRange) {
      if (r.form == ScoreForm::products) {
        Epilogue::template transform<false, ScoreForm::probabilities, false>(r.scores, r.softmax, AnyTanhAhead{}, r.head, r.prefetched,
                                                                             state.next, state.tile, 0);
      }
    }
    if constexpr (kHasLines && kModifiesScores) consumer_release(pipelines.line_values, state.tile);
    if constexpr (kProblem.dropout) Epilogue::drop(r.scores, state.next);
  }
  /// P, from raw products if a guess holds, else from scores.
  FOVEAL_DEVICE void compute_p(MainloopState& state, Fragments& r) const {
    if (kGuesses && r.form == ScoreForm::products) {
      if (r.guessing) {
        r.guesses = guess_probabilities<Element>(r.p, r.softmax, r.scores, r.head.exponents, r.head.highest_sum);
        if (r.guesses) return;
      }
      r.form = transform<false>(state, r, 0);
      if (r.form == ScoreForm::scores) r.rescales = Epilogue::update_max(r.softmax, r.scores, r.rescale);
      if (r.rescales) rescale_out(r);
    }
    exponentiate(state, r);
    pack_fragment<Element>(r.p, r.scores);
  }

  // ---- values ----

  FOVEAL_DEVICE static void rescale_out(Fragments& r) {
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) r.acc[i] *= r.rescale[fragment_row(i)];
  }
  /// O += P V has arrived: rescales O for the next scores, or writes it if it completes the previous task.
  /// inside: the step's tile is full and of the same task as the previous one.
  template <bool inside, bool scores_are_there>
  FOVEAL_DEVICE void finish_pv(MainloopState& state, Fragments& r, const EpilogueState& epilogue) const {
    wgmma_pin(r.acc);
    if (state.leader && state.started) pipelines.value.consumer_release(state.tile - 1);
    state.accumulate = inside || !state.new_task;
    if (!inside && state.new_task) {
      Epilogue::write_out(epilogue, r.acc);
    } else if (scores_are_there && r.rescales) {
      rescale_out(r);
    }
  }
};

}  // namespace foveal::device
