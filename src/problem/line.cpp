#include "problem/line.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/dtype.h"
#include "base/random.h"
#include "problem/call.h"

namespace foveal::problem {
namespace {

constexpr std::array<std::pair<Layout, const char*>, 6> layout_names{{{Layout::bshd, "bshd"},
                                                                      {Layout::bhsd, "bhsd"},
                                                                      {Layout::sbhd, "sbhd"},
                                                                      {Layout::packed_qkv, "packed_qkv"},
                                                                      {Layout::padded, "padded"},
                                                                      {Layout::dim_first, "dim_first"}}};

/// A way to make data and how many numbers it takes.
struct FillRow {
  const char* name;
  std::size_t args;
};
constexpr std::array<FillRow, 7> fill_rows{
    {{"normal", 1}, {"uniform", 2}, {"integers", 2}, {"bernoulli", 1}, {"constant", 1}, {"arange", 0}, {"segments", 1}}};

DType default_dtype(Type type, DType problem) {
  switch (type) {
    case Type::real:
      return problem == DType::f64 ? DType::f64 : DType::f32;
    case Type::integer:
      return DType::i32;
    case Type::boolean:
      return DType::boolean;
  }
  return DType::f32;
}

// ---- reading ----------------------------------------------------------------------------------------------------------------------------

struct Token {
  std::string_view key, value;  ///< `key=value`; a token without '=' is all key
  std::size_t column;
};

[[noreturn]] void fail_at(const Token& token, const std::string& what) {
  base::fail(ErrorCode::invalid_argument, "problem line, column ", token.column + 1, ": ", token.key, ": ", what);
}

std::vector<Token> split(std::string_view text) {
  std::vector<Token> tokens;
  std::size_t at = 0;
  const auto is_space = [&](std::size_t i) { return text[i] == ' ' || text[i] == '\t'; };
  while (true) {
    while (at < text.size() && is_space(at)) ++at;
    if (at == text.size()) return tokens;
    Token token{.key = {}, .value = {}, .column = at};
    std::size_t end = at;
    while (end < text.size() && !is_space(end) && text[end] != '=') ++end;
    token.key = text.substr(at, end - at);
    if (end < text.size() && text[end] == '=') {
      ++end;
      if (end < text.size() && text[end] == '"') {
        const std::size_t close = text.find('"', end + 1);
        if (close == std::string_view::npos) fail_at(token, "a quote is not closed");
        token.value = text.substr(end + 1, close - end - 1);
        end = close + 1;
      } else {
        const std::size_t begin = end;
        while (end < text.size() && !is_space(end)) ++end;
        token.value = text.substr(begin, end - begin);
      }
      if (token.value.empty()) fail_at(token, "has no value");
    }
    tokens.push_back(token);
    at = end;
  }
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

template <class Number>
Number number(const Token& token, std::string_view text, const char* expected = "a number") {
  const auto parsed = number_of<Number>(text);
  if (!parsed) fail_at(token, "'" + std::string(text) + "'; expected " + expected);
  return *parsed;
}

/// `12` or `12:4`; one number stands for both.
std::pair<std::int64_t, std::int64_t> pair_of(const Token& token, std::string_view text) {
  const auto parts = split_at(text, ':');
  if (parts.size() > 2) fail_at(token, "'" + std::string(text) + "'; expected N or N:M");
  const auto first = number<std::int64_t>(token, parts[0], "N or N:M");
  return {first, parts.size() == 2 ? number<std::int64_t>(token, parts[1], "N or N:M") : first};
}

template <class Value>
Value one_of(const Token& token, std::span<const std::pair<Value, const char*>> rows) {
  std::string names;
  for (const auto& [value, name] : rows) {
    if (token.value == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  fail_at(token, "'" + std::string(token.value) + "'; expected one of " + names);
}

ParamFill parse_fill(const Token& token, std::string_view text) {
  ParamFill fill;
  const std::size_t open = text.find('(');
  fill.name = std::string(text.substr(0, open));
  if (open != std::string_view::npos) {
    if (text.back() != ')') fail_at(token, "'" + std::string(text) + "'; expected name(numbers)");
    const std::string_view inside = trimmed(text.substr(open + 1, text.size() - open - 2));
    if (!inside.empty())
      for (const std::string_view part : split_at(inside, ',')) fill.args.push_back(number<double>(token, trimmed(part)));
  }
  std::string names;
  for (const FillRow& row : fill_rows) {
    if (fill.name == row.name && fill.args.size() == row.args) return fill;
    names += (names.empty() ? "" : ", ") + std::string(row.name) + "/" + std::to_string(row.args);
  }
  fail_at(token, "'" + std::string(text) + "'; expected a dtype, grad, grad=dtype or one of (name/numbers) " + names);
}

/// `rel: real[12, 33] bf16 normal(0.5) grad=f64`
ParamLine parse_param_line(const Token& token, DType problem) {
  const std::size_t close = token.value.find(']');
  if (close == std::string_view::npos) fail_at(token, "'" + std::string(token.value) + "'; expected name: type[sizes]");
  ParamLine line;
  line.param = parse_param(token.value.substr(0, close + 1));
  line.dtype = default_dtype(line.param.type(), problem);
  line.grad_dtype = default_dtype(Type::real, problem);
  std::string_view rest = token.value.substr(close + 1);
  while (!(rest = trimmed(rest)).empty()) {
    std::size_t end = 0;  // a word ends at a space outside parentheses
    for (int depth = 0; end < rest.size() && (depth > 0 || rest[end] != ' '); ++end)
      depth += rest[end] == '(' ? 1 : rest[end] == ')' ? -1 : 0;
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end);
    if (const auto dtype = base::parse_dtype(word)) {
      line.dtype = *dtype;
    } else if (word == "grad") {
      line.grad = true;
    } else if (word.starts_with("grad=") && base::parse_dtype(word.substr(5))) {
      line.grad = true, line.grad_dtype = *base::parse_dtype(word.substr(5));
    } else {
      line.fill = parse_fill(token, word);
    }
  }
  return line;
}

/// `q:8,4,2,1;k:0,4,2,1`
void parse_strides(const Token& token, Line& line) {
  for (const std::string_view part : split_at(token.value, ';')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) fail_at(token, "'" + std::string(part) + "'; expected name:stride,stride,...");
    std::vector<std::int64_t> strides;
    for (const std::string_view stride : split_at(part.substr(colon + 1), ',')) strides.push_back(number<std::int64_t>(token, stride));
    line.strides.emplace_back(part.substr(0, colon), std::move(strides));
  }
}

void parse_grads(const Token& token, Line& line) {
  line.dq = line.dk = line.dv = false;
  if (token.value == "none") return;
  for (const std::string_view name : split_at(token.value, ',')) {
    bool Line::*which = name == "dq" ? &Line::dq : name == "dk" ? &Line::dk : name == "dv" ? &Line::dv : nullptr;
    if (which == nullptr) fail_at(token, "'" + std::string(name) + "'; expected dq, dk, dv or none");
    line.*which = true;
  }
}

void parse_dropout(const Token& token, Line& line) {
  const auto parts = split_at(token.value, ':');
  if (parts.size() > 4 || (parts.size() == 4 && parts[3] != "memory"))
    fail_at(token, "expected p, p:seed, p:seed:offset or p:seed:offset:memory");
  line.attention.dropout_p = number<double>(token, parts[0]);
  if (parts.size() > 1) line.rng.seed = number<std::uint64_t>(token, parts[1]);
  if (parts.size() > 2) line.rng.offset = number<std::uint64_t>(token, parts[2]);
  line.rng_in_memory = parts.size() > 3;
}

/// Of a back end or a target.
std::string plain_name(const Token& token) {
  for (const char c : token.value)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') fail_at(token, "a name has letters, digits and _");
  return std::string(token.value);
}

Device parse_device(const Token& token) {
  const auto parts = split_at(token.value, ':');
  if (parts.size() > 2 || (parts[0] != "cpu" && parts[0] != "cuda")) fail_at(token, "expected cpu, cuda or cuda:N");
  Device device{.kind = parts[0] == "cpu" ? DeviceKind::cpu : DeviceKind::cuda};
  if (parts.size() == 2) device.index = number<int>(token, parts[1]);
  return device;
}

class LineParser {
 public:
  explicit LineParser(std::string_view text) : tokens_(split(text)) {}

  Line parse() {
    for (const Token& token : tokens_) header(token);
    for (const Token& token : tokens_) rest(token);
    for (const Token& token : tokens_) expressions(token);
    if (line_.paged() || !seqlens_kv_.empty()) finish_paged();
    if (line_.varlen) finish_varlen();
    if (line_.paged()) settle_pages();
    return std::move(line_);
  }

 private:
  /// b2 h12:4 q1024 d64: the letter says what, the rest is digits.
  bool size_token(const Token& token) {
    if (token.key.size() < 2 || token.key[1] < '0' || token.key[1] > '9' || !token.value.empty()) return false;
    const std::string_view digits = token.key.substr(1);
    switch (token.key[0]) {
      case 'b':
        line_.batch = number<std::int64_t>(token, digits);
        return true;
      case 'h':
        std::tie(line_.heads_q, line_.heads_kv) = pair_of(token, digits);
        return true;
      case 'q':
        std::tie(line_.seqlen_q, line_.seqlen_kv) = pair_of(token, digits);
        return true;
      case 'd':
        std::tie(line_.head_dim, line_.head_dim_v) = pair_of(token, digits);
        return true;
      default:
        return false;
    }
  }

  /// Pass, type and sizes, which other tokens need.
  void header(const Token& token) {
    if (token.key == "forward" || token.key == "backward")
      line_.pass = token.key == "forward" ? Pass::forward : Pass::backward;
    else if (const auto dtype = base::parse_dtype(token.key); dtype && is_floating(*dtype))
      line_.dtype = *dtype;
    else if (token.key == "seed")
      line_.seed = number<std::uint64_t>(token, token.value);
    else
      size_token(token);
  }

  void rest(const Token& token) {
    const std::string_view key = token.key;
    Attention& attention = line_.attention;
    if (key == "forward" || key == "backward" || key == "seed" || base::parse_dtype(key) || is_size(token)) return;
    if (key == "mask" || key == "score" || key == "sink") return;
    if (key == "layout")
      layout(token);
    else if (key == "strides")
      parse_strides(token, line_);
    else if (key == "total")
      line_.varlen = true, std::tie(line_.total_q, line_.total_kv) = pair_of(token, token.value);
    else if (key == "lengths")
      lengths(token);
    else if (key == "pages")
      pages(token);
    else if (key == "seqlens_kv")
      seqlens_kv(token);
    else if (key == "cu")
      line_.cu_seqlens_dtype = one_of<DType>(token, cu_dtypes);
    else if (key == "param")
      line_.params.push_back(parse_param_line(token, line_.dtype));
    else if (key == "scale")
      attention.scale = number<double>(token, token.value);
    else if (key == "dropout")
      parse_dropout(token, line_);
    else if (key == "determinism")
      attention.determinism = one_of<Determinism>(token, determinisms);
    else if (key == "strategy")
      attention.backward = one_of<BackwardStrategy>(token, strategies);
    else if (key == "checked")
      attention.checked = true;
    else if (key == "q_offset")
      attention.q_offset = number<std::int64_t>(token, token.value);
    else if (key == "kv_offset")
      attention.kv_offset = number<std::int64_t>(token, token.value);
    else if (key == "no_lse")
      line_.lse = false;
    else if (key == "dlse")
      line_.dlse = true;
    else if (key == "grads")
      parse_grads(token, line_);
    else if (key == "inputs")
      line_.fill = one_of<Fill>(token, fills);
    else if (key == "sample")
      line_.sample = number<std::int64_t>(token, token.value);
    else if (key == "device")
      line_.device = parse_device(token);
    else if (key == "backend")
      line_.options.backend = plain_name(token);
    else if (key == "target")
      line_.options.target = plain_name(token);
    else if (key == "threads")
      line_.options.threads = number<int>(token, token.value);
    else
      fail_at(token,
              "unknown; expected forward, backward, f64, f32, bf16, f16, bN, hN[:M], qN[:M], dN[:M], or one of layout=, strides=, total=, "
              "lengths=, pages=, seqlens_kv=, cu=, mask=, score=, param=, sink=, scale=, dropout=, determinism=, strategy=, checked, "
              "q_offset=, kv_offset=, "
              "no_lse, dlse, "
              "grads=, seed=, inputs=, sample=, device=, backend=, target=, threads=");
  }

  /// Texts that name parameters, after all parameters are known.
  void expressions(const Token& token) {
    std::vector<Param> params;
    for (const ParamLine& param : line_.params) params.push_back(param.param);
    if (token.key == "mask") line_.attention.mask = foveal::parse(token.value, params);
    if (token.key == "score") line_.attention.score_mod = foveal::parse(token.value, params);
    if (token.key != "sink") return;
    const auto named = std::find_if(params.begin(), params.end(), [&](const Param& param) { return param.name() == token.value; });
    if (named == params.end()) fail_at(token, "'" + std::string(token.value) + "' is no param of this line");
    line_.attention.sink = *named;
  }

  bool is_size(const Token& token) const {
    const std::string_view key = token.key;
    return token.value.empty() && key.size() > 1 && (key[0] == 'b' || key[0] == 'h' || key[0] == 'q' || key[0] == 'd') && key[1] >= '0' &&
           key[1] <= '9';
  }

  void layout(const Token& token) {
    if (token.value == "thd") {
      line_.varlen = true;
      return;
    }
    for (const auto& [value, name] : layout_names)
      if (token.value == name) {
        line_.layout = value;
        return;
      }
    fail_at(token, "'" + std::string(token.value) + "'; expected bshd, bhsd, sbhd, thd, packed_qkv, padded or dim_first");
  }

  void lengths(const Token& token) {
    line_.varlen = true;
    for (const std::string_view part : split_at(token.value, ',')) line_.lengths.push_back(pair_of(token, part));
    for (const auto& [q, kv] : line_.lengths)
      if (q < 0 || kv < 0) fail_at(token, "a length is negative");
  }

  /// `pages=64` or `pages=64:20`: of so many keys, so many of them.
  void pages(const Token& token) {
    const auto parts = split_at(token.value, ':');
    if (parts.size() > 2) fail_at(token, "'" + std::string(token.value) + "'; expected PAGE_SIZE or PAGE_SIZE:PAGES");
    line_.page_size = number<std::int64_t>(token, parts[0]);
    if (parts.size() > 1) line_.pages = number<std::int64_t>(token, parts[1]);
    constexpr std::int64_t most = std::int64_t{1} << 31;
    if (line_.page_size < 1 || line_.page_size > most || line_.pages < 0 || line_.pages > most || (parts.size() > 1 && line_.pages == 0))
      fail_at(token, "'" + std::string(token.value) + "'; expected positive numbers of at most 2^31");
  }

  void seqlens_kv(const Token& token) {
    for (const std::string_view part : split_at(token.value, ',')) seqlens_kv_.push_back(number<std::int64_t>(token, part));
    for (const std::int64_t length : seqlens_kv_)
      if (length < 0) fail_at(token, "a length is negative");
  }

  /// Lengths of keys in pages, of queries that are not packed: as given, or drawn from [1, seqlen_kv] with the longest first.
  void finish_paged() {
    Line& l = line_;
    FOVEAL_CHECK(l.paged(), "problem line: seqlens_kv without pages=; expected both");
    FOVEAL_CHECK(!l.varlen || seqlens_kv_.empty(), "problem line: seqlens_kv of packed queries; expected lengths=q:kv,...");
    if (l.varlen) return;
    FOVEAL_CHECK(seqlens_kv_.empty() || static_cast<std::int64_t>(seqlens_kv_.size()) == l.batch,
                 "problem line: seqlens_kv: ", seqlens_kv_.size(), " lengths; expected ", l.batch, ", one for each sequence");
    constexpr std::int64_t most = 1 << 20;
    FOVEAL_CHECK(l.batch >= 1 && l.batch <= most, "problem line: b", l.batch, "; expected 1 to ", most, " with pages");
    base::Random random(l.seed + 1);
    for (std::int64_t i = 0; i < l.batch; ++i) {
      const std::int64_t drawn = i == 0 ? l.seqlen_kv : random.integer(1, std::max<std::int64_t>(1, l.seqlen_kv));
      l.lengths.emplace_back(l.seqlen_q, seqlens_kv_.empty() ? drawn : seqlens_kv_[static_cast<std::size_t>(i)]);
    }
  }

  /// Rows of the table hold the longest sequence; pages enough that none is shared, and one for no sequence, unless their number was told.
  void settle_pages() {
    Line& l = line_;
    for (const auto& [q, kv] : l.lengths) l.seqlen_kv = std::max(l.seqlen_kv, kv);
    constexpr std::int64_t most = std::int64_t{1} << 31;
    FOVEAL_CHECK(l.seqlen_kv <= most, "problem line: ", l.seqlen_kv, " keys in pages; expected at most ", most);
    l.seqlen_kv = std::max<std::int64_t>(1, (l.seqlen_kv + l.page_size - 1) / l.page_size) * l.page_size;
    if (l.pages == 0) l.pages = static_cast<std::int64_t>(l.lengths.size()) * l.table_pages() + 1;
    l.total_kv = 0;
  }

  /// Lengths as given; or the totals dealt out evenly; or drawn from [1, seqlen] with the longest first.
  void finish_varlen() {
    Line& l = line_;
    const bool told_max =
        std::any_of(tokens_.begin(), tokens_.end(), [this](const Token& token) { return token.key[0] == 'q' && is_size(token); });
    if (l.lengths.empty()) {
      FOVEAL_CHECK(l.batch >= 1, "problem line: b", l.batch, "; expected at least 1");
      const auto even = [&](std::int64_t total, std::int64_t i) { return total / l.batch + (i < total % l.batch); };
      base::Random random(l.seed + 1);
      for (std::int64_t i = 0; i < l.batch; ++i) {
        if (l.total_q > 0) {
          l.lengths.emplace_back(even(l.total_q, i), even(l.total_kv, i));
        } else {
          const bool first = i == 0, same = l.seqlen_q == l.seqlen_kv;
          const std::int64_t q = first ? l.seqlen_q : random.integer(1, std::max<std::int64_t>(1, l.seqlen_q));
          const std::int64_t kv = first ? l.seqlen_kv : same ? q : random.integer(1, std::max<std::int64_t>(1, l.seqlen_kv));
          l.lengths.emplace_back(q, kv);
        }
      }
    }
    l.batch = static_cast<std::int64_t>(l.lengths.size());
    l.total_q = l.total_kv = 0;
    std::int64_t longest_q = 0, longest_kv = 0;
    for (const auto& [q, kv] : l.lengths) {
      l.total_q += q, l.total_kv += kv;
      longest_q = std::max(longest_q, q), longest_kv = std::max(longest_kv, kv);
    }
    if (!told_max) l.seqlen_q = longest_q, l.seqlen_kv = longest_kv;
  }

  static constexpr std::array<std::pair<DType, const char*>, 2> cu_dtypes{{{DType::i32, "i32"}, {DType::i64, "i64"}}};
  static constexpr std::array<std::pair<Determinism, const char*>, 2> determinisms{
      {{Determinism::fast, "fast"}, {Determinism::reproducible, "reproducible"}}};
  static constexpr std::array<std::pair<BackwardStrategy, const char*>, 4> strategies{{{BackwardStrategy::automatic, "automatic"},
                                                                                       {BackwardStrategy::fused, "fused"},
                                                                                       {BackwardStrategy::split, "split"},
                                                                                       {BackwardStrategy::two_scan, "two_scan"}}};
  static constexpr std::array<std::pair<Fill, const char*>, 2> fills{{{Fill::normal, "normal"}, {Fill::adversarial, "adversarial"}}};

  std::vector<Token> tokens_;
  std::vector<std::int64_t> seqlens_kv_;
  Line line_;
};

// ---- writing ----------------------------------------------------------------------------------------------------------------------------

std::string number_text(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, error == std::errc{} ? end : text};
}

template <class Numbers>
std::string list_text(const Numbers& numbers, const char* separator) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : separator) + std::to_string(number);
  return text;
}

std::string pair_text(std::int64_t first, std::int64_t second) {
  return std::to_string(first) + (second == first ? "" : ":" + std::to_string(second));
}

std::string param_text(const ParamLine& line, DType problem) {
  std::string text = line.param.name() + ": " + to_string(line.param.type()) + "[" + list_text(line.param.shape(), ", ") + "]";
  if (line.dtype != default_dtype(line.param.type(), problem)) text += std::string(" ") + to_string(line.dtype);
  if (!line.fill.name.empty()) {
    text += " " + line.fill.name;
    std::string args;
    for (const double arg : line.fill.args) args += (args.empty() ? "" : ", ") + number_text(arg);
    if (!args.empty()) text += "(" + args + ")";
  }
  if (line.grad)
    text += line.grad_dtype == default_dtype(Type::real, problem) ? " grad" : std::string(" grad=") + to_string(line.grad_dtype);
  return text;
}

void write_varlen(const Line& l, std::string& text) {
  text += l.layout == Layout::bshd ? " layout=thd" : "";
  if (l.lengths.empty()) {
    text += " total=" + pair_text(l.total_q, l.paged() ? l.total_q : l.total_kv);
  } else {
    text += " lengths=";
    for (std::size_t i = 0; i < l.lengths.size(); ++i) text += (i > 0 ? "," : "") + pair_text(l.lengths[i].first, l.lengths[i].second);
  }
}

void write_paged(const Line& l, std::string& text) {
  text += " pages=" + std::to_string(l.page_size) + ":" + std::to_string(l.pages);
  if (l.varlen || l.lengths.empty()) return;
  for (std::size_t i = 0; i < l.lengths.size(); ++i) text += (i > 0 ? "," : " seqlens_kv=") + std::to_string(l.lengths[i].second);
}

void write_attention(const Line& l, std::string& text) {
  const Attention& a = l.attention;
  if (a.mask.present()) text += " mask=\"" + to_string(a.mask) + "\"";
  if (a.score_mod.present()) text += " score=\"" + to_string(a.score_mod) + "\"";
  for (const ParamLine& param : l.params) text += " param=\"" + param_text(param, l.dtype) + "\"";
  if (a.sink) text += " sink=" + a.sink->name();
  if (a.scale) text += " scale=" + number_text(*a.scale);
  if (a.dropout_p != 0) {
    text += " dropout=" + number_text(a.dropout_p);
    if (l.rng.seed != 0 || l.rng.offset != 0 || l.rng_in_memory) text += ":" + std::to_string(l.rng.seed);
    if (l.rng.offset != 0 || l.rng_in_memory) text += ":" + std::to_string(l.rng.offset);
    if (l.rng_in_memory) text += ":memory";
  }
  if (a.determinism != Determinism::fast) text += std::string(" determinism=") + to_string(a.determinism);
  if (a.backward != BackwardStrategy::automatic) text += std::string(" strategy=") + to_string(a.backward);
  if (a.checked) text += " checked";
  if (a.q_offset != 0) text += " q_offset=" + std::to_string(a.q_offset);
  if (a.kv_offset != 0) text += " kv_offset=" + std::to_string(a.kv_offset);
}

void write_outputs(const Line& l, std::string& text) {
  if (l.pass == Pass::forward) {
    if (!l.lse) text += " no_lse";
    return;
  }
  if (l.dlse) text += " dlse";
  if (l.dq && l.dk && l.dv) return;
  std::string grads;
  for (const auto& [wanted, name] : {std::pair{l.dq, "dq"}, std::pair{l.dk, "dk"}, std::pair{l.dv, "dv"}})
    if (wanted) grads += (grads.empty() ? "" : ",") + std::string(name);
  text += " grads=" + (grads.empty() ? "none" : grads);
}

void write_run(const Line& l, std::string& text) {
  if (l.seed != 0) text += " seed=" + std::to_string(l.seed);
  if (l.fill != Fill::normal) text += " inputs=adversarial";
  if (l.sample != 0) text += " sample=" + std::to_string(l.sample);
  if (l.device.kind == DeviceKind::cuda) text += " device=cuda" + (l.device.index == 0 ? "" : ":" + std::to_string(l.device.index));
  if (!l.options.backend.empty()) text += " backend=" + l.options.backend;
  if (!l.options.target.empty()) text += " target=" + l.options.target;
  if (l.options.threads != 0) text += " threads=" + std::to_string(l.options.threads);
}

// ---- layouts ----------------------------------------------------------------------------------------------------------------------------

bool is_statistic(std::string_view role) { return role == "lse" || role == "dlse"; }

/// Strides with those of single-element dimensions made canonical, so that only strides that matter are compared.
std::vector<std::int64_t> canonical(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t> strides) {
  std::int64_t inner = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) strides[d] = inner;
    inner = sizes[d] * strides[d];
  }
  return strides;
}

}  // namespace

const char* to_string(Layout layout) { return layout_names[static_cast<std::size_t>(layout)].second; }

Line parse_line(std::string_view text) { return LineParser(text).parse(); }

std::string to_string(const Line& l) {
  std::string text = std::string(to_string(l.pass)) + " " + to_string(l.dtype) + " b" + std::to_string(l.batch) + " h" +
                     pair_text(l.heads_q, l.heads_kv) + " q" + pair_text(l.seqlen_q, l.seqlen_kv) + " d" +
                     pair_text(l.head_dim, l.head_dim_v);
  if (l.varlen) write_varlen(l, text);
  if (l.paged()) write_paged(l, text);
  if (l.cu_seqlens_dtype != DType::i32) text += std::string(" cu=") + to_string(l.cu_seqlens_dtype);
  if (l.layout != Layout::bshd) text += std::string(" layout=") + to_string(l.layout);
  for (std::size_t i = 0; i < l.strides.size(); ++i)
    text += (i == 0 ? " strides=" : ";") + l.strides[i].first + ":" + list_text(l.strides[i].second, ",");
  write_attention(l, text);
  write_outputs(l, text);
  write_run(l, text);
  return text;
}

std::vector<std::int64_t> role_sizes(const Line& l, std::string_view role) {
  const std::int64_t rows = l.varlen ? 1 : l.batch;
  const std::int64_t len_q = l.varlen ? l.total_q : l.seqlen_q;
  const std::int64_t rows_kv = l.paged() ? l.pages : rows, len_kv = l.paged() ? l.page_size : l.varlen ? l.total_kv : l.seqlen_kv;
  if (is_statistic(role)) return {rows, l.heads_q, len_q};
  if (role == "q" || role == "dq") return {rows, len_q, l.heads_q, l.head_dim};
  if (role == "k" || role == "dk") return {rows_kv, len_kv, l.heads_kv, l.head_dim};
  if (role == "v" || role == "dv") return {rows_kv, len_kv, l.heads_kv, l.head_dim_v};
  return {rows, len_q, l.heads_q, l.head_dim_v};
}

std::vector<bool> sampled_queries(const Line& line) {
  if (line.sample <= 0) return {};
  const std::int64_t tokens = role_sizes(line, "q")[1], count = std::min(line.sample, tokens);
  std::vector<bool> sampled(static_cast<std::size_t>(tokens));
  base::Random random(line.seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = tokens * i / count, end = tokens * (i + 1) / count;
    const std::int64_t token = i == 0 ? 0 : i + 1 == count ? tokens - 1 : random.integer(begin, end - 1);
    sampled[static_cast<std::size_t>(token)] = true;
  }
  return sampled;
}

std::vector<std::int64_t> layout_strides(const Line& l, std::string_view role) {
  const std::vector<std::int64_t> sizes = role_sizes(l, role);
  for (const auto& [name, strides] : l.strides)
    if (name == role) return strides;
  if (is_statistic(role)) return {sizes[1] * sizes[2], sizes[2], 1};
  const std::int64_t b = sizes[0], s = sizes[1], h = sizes[2], d = sizes[3];
  switch (l.layout) {
    case Layout::bshd:
      break;
    case Layout::bhsd:
      return {h * s * d, d, s * d, 1};
    case Layout::sbhd:
      return {h * d, b * h * d, d, 1};
    case Layout::packed_qkv: {
      if (role == "out" || role == "dout") break;
      const std::int64_t token = l.heads_q * l.head_dim + l.heads_kv * (l.head_dim + l.head_dim_v);
      return {s * token, token, d, 1};
    }
    case Layout::padded: {
      constexpr std::int64_t gap = 8;
      return {(s + 3) * h * (d + gap), h * (d + gap), d + gap, 1};
    }
    case Layout::dim_first:
      return {h * d * s, 1, d * s, s};
  }
  return {s * h * d, h * d, d, 1};
}

Line line_of(const Problem& p) {
  Line l;
  l.pass = p.pass, l.dtype = p.dtype, l.batch = p.batch, l.heads_q = p.heads_q, l.heads_kv = p.heads_kv;
  l.seqlen_q = p.seqlen_q, l.seqlen_kv = p.seqlen_kv, l.head_dim = p.head_dim, l.head_dim_v = p.head_dim_v;
  l.varlen = p.varlen, l.device = p.device;
  for (const TensorSpec* lengths : {&p.seqlens_kv, &p.cu_seqlens_q})
    if (lengths->present) l.cu_seqlens_dtype = lengths->dtype;
  if (p.varlen) l.total_q = p.total_q, l.total_kv = p.total_kv;
  if (p.paged) {
    l.page_size = p.page_size(), l.pages = p.pages(), l.total_kv = 0;
    l.seqlen_kv = p.block_table.sizes[1] * l.page_size;
  }
  l.attention = p.attention;
  for (const ParamSpec& spec : p.params)
    l.params.push_back(
        {.param = spec.param, .dtype = spec.tensor.dtype, .fill = {}, .grad = spec.gradient.present, .grad_dtype = spec.gradient.dtype});
  l.lse = p.lse.present, l.dlse = p.dlse.present;
  l.dq = p.dq.present, l.dk = p.dk.present, l.dv = p.dv.present;

  const auto found = [&p](const Role& role) {
    const TensorSpec& spec = p.*role.spec;
    return std::vector<std::int64_t>(spec.strides.begin(), spec.strides.begin() + spec.rank);
  };
  const auto differing = [&](Layout layout) {
    l.layout = layout;
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> strides;
    for (const Role& role : roles)
      if ((p.*role.spec).present && !role.integers()) {
        const auto sizes = role_sizes(l, role.name);
        if (canonical(sizes, layout_strides(l, role.name)) != canonical(sizes, found(role))) strides.emplace_back(role.name, found(role));
      }
    return strides;
  };
  for (const auto& [layout, name] : layout_names)
    if (differing(layout).empty()) return l;
  l.strides = differing(Layout::bshd);
  return l;
}

std::string Problem::line() const { return to_string(line_of(*this)); }

}  // namespace foveal::problem
