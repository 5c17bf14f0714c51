// A plan in words: tables and a picture.
#include <algorithm>
#include <cstdio>

#include "dist/plan.h"
#include "dist/steps.h"

namespace foveal::dist {
namespace {

template <class... Args>
std::string format(const char* text, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, text, args...);
  return line;
}

double millions(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }
double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

char name_of(int rank) { return "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[rank]; }
constexpr int most_names = 62, most_ranks_shown = 16;

/// Queries from top to bottom, keys from left to right, over the whole axis; a cell where some pair is kept shows who computes it.
std::string picture(const ContextPlan& plan) {
  constexpr std::int64_t side = 48;
  const std::int64_t total_q = plan.q.total(), total_kv = plan.kv.total();
  if (total_q == 0 || total_kv == 0) return "";
  const std::int64_t rows = std::min(side, total_q), columns = std::min(side, total_kv);
  std::vector<std::string> cells(static_cast<std::size_t>(rows), std::string(static_cast<std::size_t>(columns), '.'));
  for (int group = 0; group < plan.groups(); ++group)
    for (const Block& block : plan.blocks[static_cast<std::size_t>(group)]) {
      const std::int64_t q = plan.q.first(block.sequence), kv = plan.kv.first(block.sequence);
      const std::int64_t first = (q + block.q.begin) * rows / total_q, last = (q + block.q.end - 1) * rows / total_q;
      const std::int64_t left = (kv + block.kv.begin) * columns / total_kv, right = (kv + block.kv.end - 1) * columns / total_kv;
      for (std::int64_t row = first; row <= last; ++row)
        for (std::int64_t column = left; column <= right; ++column)
          cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = plan.groups() <= most_names ? name_of(group) : '#';
    }
  std::string text = plan.head_groups == 1 ? "  the mask by ranks (blocks as they are sent: a row of queries shows who computes it)\n"
                                           : "  the mask by groups of ranks\n";
  for (const std::string& row : cells) text += "    " + row + "\n";
  return text;
}

}  // namespace

std::string explain(const ContextPlan& plan, const Workload& w, const PlanRequest& request) {
  std::string text = format("context plan for %d ranks: %s, %d head group%s, %d remote step%s, machine %s\n", plan.ranks,
                            to_string(plan.deal), plan.head_groups, plan.head_groups == 1 ? "" : "s", plan.remote_steps,
                            plan.remote_steps == 1 ? "" : "s", request.machine.name.c_str());
  text += format("  checksum %016llx\n", static_cast<unsigned long long>(plan.checksum));
  if (w.mask_reads_unknown) text += "  the mask reads a tensor without data here: what depends on it counts as partial\n";
  text += "  rank   tokens  chunks    work  peers   forward MB in/out    backward MB in/out   memory MB f/b      predicted us f/b\n";
  std::int64_t total_work = 0;
  for (const RankLoad& load : plan.loads) total_work += load.work;
  const double mean = static_cast<double>(total_work) / plan.ranks;
  const auto line = [&](int rank) {
    const RankLoad& l = plan.loads[static_cast<std::size_t>(rank)];
    text += format(
        "  %4d %8lld %7lld %6.3f %6lld %10.2f %9.2f %10.2f %10.2f %8.1f %8.1f %11.1f %10.1f\n", rank, static_cast<long long>(l.tokens_q),
        static_cast<long long>(l.chunks), mean > 0 ? static_cast<double>(l.work) / mean : 0.0, static_cast<long long>(l.peers),
        millions(l.forward_in), millions(l.forward_out), millions(l.backward_in), millions(l.backward_out), millions(l.forward_memory),
        millions(l.backward_memory), microseconds(l.forward_ns + l.forward_beside_ns), microseconds(l.backward_ns + l.backward_beside_ns));
  };
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (plan.ranks > most_ranks_shown && rank == most_ranks_shown / 2) {
      text += format("   ... %d more\n", plan.ranks - most_ranks_shown);
      rank = plan.ranks - most_ranks_shown / 2;
    }
    line(rank);
  }
  text += format("  imbalance %.2f %% (work: 1 is the mean)", static_cast<double>(plan.imbalance()) / 1e4);
  if (plan.deal == Deal::pieces && mean > 0)
    text += format("; largest piece / mean %.3f", static_cast<double>(plan.largest_piece) / plan.head_groups / mean);
  text += "\n";

  // What one rank alone would take, by the same model.
  Machine alone = request.machine;
  PlanRequest single;
  single.machine = alone, single.deal = Deal::contiguous;
  const ContextPlan one = make_plan(w, single);
  const auto efficiency = [&](std::int64_t whole, std::int64_t part) {
    return part > 0 ? 100.0 * static_cast<double>(whole) / static_cast<double>(part) / plan.ranks : 100.0;
  };
  text += format("  predicted: forward %.1f us, backward %.1f us; one rank %.1f and %.1f us; efficiency %.1f %% and %.1f %%\n",
                 microseconds(plan.forward_ns()), microseconds(plan.backward_ns()), microseconds(one.forward_ns()),
                 microseconds(one.backward_ns()), efficiency(one.forward_ns(), plan.forward_ns()),
                 efficiency(one.backward_ns(), plan.backward_ns()));
  std::int64_t most_in = 0;
  for (const RankLoad& load : plan.loads) most_in = std::max(most_in, load.forward_in);
  if (plan.head_groups == 1) {
    std::int64_t forward = 0, backward = 0;
    for (const RankLoad& l : plan.loads)
      forward = std::max(forward, l.forward_device_memory), backward = std::max(backward, l.backward_device_memory);
    text += format("  memory on GPUs at most: forward %.1f MB, backward %.1f MB\n", millions(forward), millions(backward));
  }
  const std::int64_t link = plan.ranks > request.machine.ranks_per_host ? request.machine.network_mbytes : request.machine.host_mbytes;
  const double wire = static_cast<double>(most_in) / static_cast<double>(link), compute = microseconds(one.forward_ns()) / plan.ranks;
  if (most_in > 0 && compute > 0)
    text += format(
        "  transfers need %.1f us beside %.1f us of work: %.1f %%; they hide as long as this is well below 100 %%, and for a mask\n"
        "  whose work grows with the square of the length they stop to below about %.0f tokens\n",
        wire, compute, 100 * wire / compute, static_cast<double>(plan.q.total()) * wire / compute);
  return text + picture(plan);
}

}  // namespace foveal::dist
