#include "cuda/tune/tuned.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/text_file.h"
#include "cuda/arch.h"

namespace foveal::cuda {
namespace {

/// By "device | family | class".
using Table = std::map<std::string, Tuned>;

std::string key_of(const std::string& device, const std::string& family, const std::string& problem) {
  return base::join(device, " | ", family, " | ", problem);
}

/// A family outside this list would be ignored silently.
std::vector<std::string> known_families() {
  std::vector<std::string> known;
  for (const Target& target : targets()) known.insert(known.end(), target.families.begin(), target.families.end());
  return known;
}
std::string text_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += base::join(i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  return text;
}

Table read(const std::string& path) {
  Table table;
  if (path.empty()) return table;
  const std::vector<std::string> known = known_families();
  int number = 0;
  for (std::string& line : base::read_text_lines(path, "FOVEAL_TUNED: " + path, "a file that foveal tune wrote, or nothing")) {
    ++number;
    line.erase(line.find_last_not_of(" \t\r") + 1);  // a trailing blank would make a class match nothing, silently
    if (line.empty() || line[0] == '#') continue;
    std::string part[4];
    std::size_t begin = 0;
    for (int i = 0; i < 4; ++i) {
      const std::size_t end = i < 3 ? line.find(" | ", begin) : line.size();
      FOVEAL_CHECK(end != std::string::npos, "FOVEAL_TUNED: ", path, ":", number, ": ", i + 1,
                   " parts; expected device | family | configuration | class");
      part[i] = line.substr(begin, end - begin);
      begin = end + 3;
    }
    FOVEAL_CHECK(std::find(known.begin(), known.end(), part[1]) != known.end(), "FOVEAL_TUNED: ", path, ":", number, ": unknown family ",
                 part[1], "; expected ", text_of(known));
    table.insert_or_assign(key_of(part[0], part[1], part[3]), Tuned{part[2], base::join(path, ":", number)});
  }
  return table;
}

struct File {
  std::mutex mutex;
  std::optional<Table> table;  ///< none: not read yet
};
File& the_file() {
  static File file;
  return file;
}

thread_local const std::pair<std::string, Tuned>* trial = nullptr;

std::int64_t power_of_two(std::int64_t length) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(length, 1))));
}

/// What a line applies to: pass, dtype, head dims, lengths rounded up to powers of two, whether heads share keys, and the programs.
std::string problem_class(const problem::Problem& p) {
  return base::join(to_string(p.pass), " ", to_string(p.dtype), " d", p.head_dim, ":", p.head_dim_v, " q", power_of_two(p.seqlen_q), " kv",
                    power_of_two(p.seqlen_kv), " group=", p.group_size, p.varlen ? " packed" : "",
                    p.paged ? base::join(" pages=", p.page_size()) : "", p.merges() ? " part" : "", p.spread ? " spread" : "",
                    p.attention.dropout_p > 0 ? " dropout" : "",
                    p.attention.determinism == Determinism::reproducible ? " reproducible" : "", " ", p.score->text);
}

}  // namespace

std::optional<Tuned> tuned_config(const problem::Problem& p, const std::string& device, const std::string& family) {
  if (trial != nullptr && trial->first == family) return trial->second;
  File& file = the_file();
  const std::lock_guard lock(file.mutex);
  if (!file.table) {
    const char* const path = std::getenv("FOVEAL_TUNED");
    file.table = read(path != nullptr ? path : "");
  }
  if (file.table->empty()) return std::nullopt;
  const auto found = file.table->find(key_of(device, family, problem_class(p)));
  return found == file.table->end() ? std::nullopt : std::optional(found->second);
}

std::string tuned_line(const problem::Problem& p, const std::string& device, const std::string& family, const std::string& config) {
  return base::join(device, " | ", family, " | ", config, " | ", problem_class(p));
}

void set_tuned_file(const std::string& path) {
  Table table = read(path);
  File& file = the_file();
  const std::lock_guard lock(file.mutex);
  file.table = std::move(table);
}

Trial::Trial(std::string family, std::string config) {
  FOVEAL_CHECK(trial == nullptr, "a trial inside a trial; expected one at a time");
  trial = new std::pair(std::move(family), Tuned{std::move(config), "a trial"});
}
Trial::~Trial() { delete std::exchange(trial, nullptr); }

}  // namespace foveal::cuda
