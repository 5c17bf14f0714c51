// gpt: trains a small GPT on a text with foveal's attention, then shows what it learned and what the fused attention saves.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "attention_cost.h"
#include "checkpoint.h"
#include "data.h"
#include "decoder.h"
#include "plots.h"
#include "progress_bar.h"
#include "trainer.h"

namespace {

struct Options {
  std::string text, out = "gpt-run", resume, measure, prompt = "And it came to pass";
  gpt::Config config;
  gpt::TrainingOptions training;
  std::uint64_t seed = 1;
  std::int64_t unfused_steps = 10;
  std::int64_t sample_tokens = 160;
  bool costs = true;
  bool mpi = false;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--text", o.text, "the text to learn: any file of a megabyte or more");
  app.add_option("--out", o.out, "folder for the checkpoint, the sample and the pictures")->capture_default_str();
  app.add_option("--resume", o.resume, "go on from this checkpoint");
  app.add_option("--steps", o.training.schedule.steps, "updates")->capture_default_str();
  app.add_option("--stop-after", o.training.stop_after, "stop here and save; --resume goes on");
  app.add_option("--batch", o.training.batch, "sequences in a batch")->capture_default_str();
  app.add_option("--rate", o.training.schedule.peak, "peak learning rate")->capture_default_str();
  app.add_option("--place", o.training.place, "where to train: host, or gpu (foveal, cuBLAS and kernels compiled at run time)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, gpt::Place>{{"host", gpt::Place::host}, {"gpu", gpt::Place::gpu}}));
  app.add_option("--seed", o.seed, "of the weights, the batches and the sample")->capture_default_str();
  app.add_option("--vocabulary", o.config.vocabulary, "word pieces; 256 is bytes only")->capture_default_str();
  app.add_option("--width", o.config.width)->capture_default_str();
  app.add_option("--layers", o.config.layers)->capture_default_str();
  app.add_option("--heads", o.config.heads)->capture_default_str();
  app.add_option("--context", o.config.context, "tokens that attend to each other")->capture_default_str();
  app.add_option("--reach", o.config.reach, "distances with a bias of their own")->capture_default_str();
  app.add_option("--unfused-steps", o.unfused_steps, "first steps to run again with materialised attention on the host")
      ->capture_default_str();
  app.add_option("--prompt", o.prompt, "what the sample begins with")->capture_default_str();
  app.add_option("--sample", o.sample_tokens, "tokens of the sample")->capture_default_str();
  app.add_flag("!--no-costs", o.costs, "leave out the table of speed and memory at long contexts");
  app.add_flag("--mpi", o.mpi, "all processes of mpirun share each sequence (on the host)");
  app.add_option("--measure", o.measure, "only print the speed and the memory of one layer: fused or unfused")->group("");
}

// Trains `state` to the end of the schedule.
void train_with_bar(gpt::Checkpoint& state, const gpt::Dataset& data, const Options& o) {
  const std::int64_t first = state.step;
  gpt::ProgressBar bar(o.training.schedule.steps, first);
  double validation = std::nan("");
  gpt::train(state, data, o.training, [&](const gpt::Progress& row) {
    if (!std::isnan(row.validation)) validation = row.validation;
    const double tokens = static_cast<double>((row.step - first) * o.training.batch * o.config.context);
    const std::string known = std::isnan(validation) ? "" : fmt::format("  validation {:.3f}", validation);
    bar.update(row.step, fmt::format("loss {:.3f}{}  {:.0f} tokens/s", row.training, known, tokens / bar.seconds()));
  });
}

// The same seed with materialised attention on the host: the losses must agree to rounding.
void compare_with_unfused(const gpt::Checkpoint& fused, const gpt::Tokenizer& tokenizer, const gpt::Dataset& data, const Options& o) {
  gpt::TrainingOptions training = o.training;
  training.attention = gpt::AttentionKind::unfused;
  training.place = gpt::Place::host;
  training.ranks = {};
  training.stop_after = std::min<std::int64_t>(o.unfused_steps, static_cast<std::int64_t>(fused.history.size()));
  gpt::Checkpoint state = gpt::start(o.config, o.seed, tokenizer);
  gpt::train(state, data, training, [](const gpt::Progress&) {});
  const double ours = fused.history[state.history.size() - 1].training, theirs = state.history.back().training;
  fmt::print("\nthe first {} steps again with materialised attention on the host: loss {:.6f}, fused {:.6f}, relative difference {:.1e}\n",
             state.step, theirs, ours, std::abs(ours - theirs) / theirs);
}

void print_costs(const Options& o) {
  fmt::print("\nattention of one layer, forward and backward   tokens/s   peak memory\n");
  for (const std::int64_t context : {2048, 8192}) {
    gpt::AttentionShape shape = o.config.attention(1);
    shape.context = context;
    for (const auto& [kind, name] : {std::pair{gpt::AttentionKind::fused, "fused"}, {gpt::AttentionKind::unfused, "unfused"}}) {
      const gpt::AttentionCost cost = gpt::measure_attention_apart(kind, shape);
      fmt::print("  context {:5}   {:24} {:14.0f} {:10.1f} MB\n", context, name, cost.tokens_per_second,
                 static_cast<double>(cost.peak_bytes) / 1e6);
    }
  }
}

int run(const Options& given) {
  Options o = given;
  if (!o.measure.empty()) {
    const auto kind = o.measure == "fused" ? gpt::AttentionKind::fused : gpt::AttentionKind::unfused;
    fmt::print("{}", gpt::to_line(gpt::measure_attention(kind, o.config.attention(1))));
    return 0;
  }
  if (o.mpi && o.training.place == gpt::Place::gpu) throw std::runtime_error("--mpi: not on a GPU; expected --place host");
  std::filesystem::create_directories(o.out);
  const std::string text = gpt::read_text(o.text);

  gpt::Checkpoint state;
  gpt::Tokenizer tokenizer;
  if (o.resume.empty()) {
    tokenizer = gpt::Tokenizer::learn(text, o.config.vocabulary);
    o.config.vocabulary = tokenizer.size();
    o.config.validate();
    state = gpt::start(o.config, o.seed, tokenizer);
  } else {
    state = gpt::load_checkpoint(o.resume);
    tokenizer = gpt::Tokenizer(state.merges);
    o.config = state.config;
    o.seed = state.seed;
  }
  if (o.mpi) o.training.ranks = gpt::Ranks(foveal::dist::mpi_world(), o.config.context);
  if (o.training.ranks.rank() > 0) {  // works along; rank 0 tells
    const gpt::Dataset data(tokenizer.encode(text), o.config.context);
    gpt::train(state, data, o.training, [](const gpt::Progress&) {});
    return 0;
  }
  const gpt::Dataset data(tokenizer.encode(text), o.config.context);
  fmt::print("{} bytes of text, {} word pieces, {} training tokens, {} validation tokens, {} parameters\n", text.size(), tokenizer.size(),
             data.training_tokens(), data.validation_tokens(), gpt::count_parameters(o.config));
  std::fflush(stdout);

  train_with_bar(state, data, o);
  gpt::save(state, o.out + "/checkpoint");
  if (state.history.empty()) return 0;

  gpt::plot_loss(state.history, o.out + "/loss.png");
  gpt::plot_bias(o.config, state.parameters, o.out + "/bias.png");
  const std::string sample =
      o.prompt + tokenizer.decode(gpt::sample(o.config, state.parameters, tokenizer.encode(o.prompt), o.sample_tokens, o.seed));
  std::ofstream(o.out + "/sample.txt") << sample << '\n';
  fmt::print("\n{}\n", sample);
  std::fflush(stdout);

  if (o.unfused_steps > 0) compare_with_unfused(state, tokenizer, data, o);
  if (o.costs) print_costs(o);
  fmt::print("\n{0}/loss.png  {0}/bias.png  {0}/sample.txt  {0}/checkpoint\n", o.out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on a text with foveal's fused attention: causal, with a trainable bias for each head and distance.");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    if (options.text.empty() && options.measure.empty()) throw std::runtime_error("--text: no file given");
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return 1;
  }
}
