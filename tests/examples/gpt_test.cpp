// The parts of examples/gpt: gradients by finite differences, fused against unfused attention, resuming, sampling, the tokenizer.
#include <foveal/foveal.h>
#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "checkpoint.h"
#include "data.h"
#include "decoder.h"
#include "own_folder.h"
#include "tokenizer.h"
#include "trainer.h"

namespace gpt {
namespace {

// Models this small are slower on two threads than on one, and far slower on a machine that has other work.
class OneThread : public testing::Environment {
  void SetUp() override {
    foveal::set_num_threads(1);
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
  }
};
[[maybe_unused]] const auto* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

// Sizes that share no factors with any tile, a reach shorter than the context, and a group of rows longer than a block of columns.
constexpr Config tiny{.vocabulary = 29, .width = 36, .layers = 2, .heads = 3, .context = 21, .reach = 7};

std::string some_text() {
  std::mt19937 random(5);
  const std::vector<std::string> words{"and", "the", "lord", "said", "unto", "moses", "it's", "light", "water", "was"};
  std::string text;
  while (text.size() < 20000) text += words[random() % words.size()] + (random() % 9 == 0 ? ".\n" : " ");
  return text;
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::int64_t vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return tokens;
}

Batch random_batch(const Config& config, std::int64_t batch) {
  const auto count = static_cast<std::size_t>(batch * config.context);
  return {random_tokens(count, config.vocabulary, 1), random_tokens(count, config.vocabulary, 2)};
}

// Nothing stays at 0 or 1, where a wrong gradient could hide.
std::vector<double> shaken_parameters(const Config& config) {
  const std::vector<float> initial = initial_parameters(config, 3);
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal(0.0, 0.2);
  std::vector<double> values(initial.begin(), initial.end());
  for (double& value : values) value += normal(random);
  return values;
}

class Attentions : public testing::TestWithParam<AttentionKind> {};

TEST_P(Attentions, GradientsEqualFiniteDifferences) {
  const Batch batch = random_batch(tiny, 2);
  Model<double> model(tiny, 2, GetParam(), make_host<double>(), shaken_parameters(tiny));
  model.forward(batch);
  model.backward(batch);
  const std::vector<double> gradients = model.gradients();

  // Every bias, and a sample of everything else.
  std::vector<std::size_t> places;
  const Parameters<double> p(tiny, model.parameters().data());
  for (const auto& block : p.blocks) {
    for (std::int64_t i = 0; i < tiny.attention(1).bias_size(); ++i) {
      places.push_back(static_cast<std::size_t>(block.bias - model.parameters().data() + i));
    }
  }
  for (std::size_t i = 0; i < gradients.size(); i += 37) places.push_back(i);

  constexpr double h = 1e-5;
  for (const std::size_t i : places) {
    const double value = model.parameters()[i];
    model.parameters()[i] = value + h;
    const double above = model.forward(batch);
    model.parameters()[i] = value - h;
    const double below = model.forward(batch);
    model.parameters()[i] = value;
    EXPECT_NEAR(gradients[i], (above - below) / (2 * h), 1e-8 + 1e-5 * std::abs(gradients[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt, Attentions, testing::Values(AttentionKind::fused, AttentionKind::unfused),
                         [](const auto& info) { return info.param == AttentionKind::fused ? "fused" : "unfused"; });

struct SmallRun {
  Tokenizer tokenizer = Tokenizer::learn(some_text(), 300);
  Config config{.vocabulary = tokenizer.size(), .width = 32, .layers = 2, .heads = 2, .context = 33, .reach = 16};
  Dataset data{tokenizer.encode(some_text()), config.context};
  TrainingOptions options{.batch = 2, .schedule = {.peak = 2e-3, .warmup = 5, .steps = 30}, .validate_every = 10, .validation_batches = 2};

  Checkpoint trained(Checkpoint state) const {
    train(state, data, options, [](const Progress&) {});
    return state;
  }
  Checkpoint fresh() const { return start(config, 11, tokenizer); }
};

TEST(Training, FusedAndUnfusedAgreeToRounding) {
  SmallRun run;
  const Checkpoint fused = run.trained(run.fresh());
  run.options.attention = AttentionKind::unfused;
  const Checkpoint unfused = run.trained(run.fresh());
  ASSERT_EQ(fused.history.size(), 30u);
  for (std::size_t i = 0; i < fused.history.size(); ++i) {
    EXPECT_NEAR(fused.history[i].training, unfused.history[i].training, 1e-4) << "step " << i;
  }
  EXPECT_NE(fused.parameters, unfused.parameters) << "two ways of computing that never round differently are one way";
}

TEST(Training, TheGpuAgreesWithTheHostToRounding) {
  if (!gpu_unavailable().empty()) GTEST_SKIP() << gpu_unavailable();
  SmallRun run;
  const Checkpoint host = run.trained(run.fresh());
  run.options.place = Place::gpu;
  const Checkpoint gpu = run.trained(run.fresh()), again = run.trained(run.fresh());
  ASSERT_EQ(gpu.history.size(), 30u);
  for (std::size_t i = 0; i < gpu.history.size(); ++i) {
    EXPECT_NEAR(gpu.history[i].training, host.history[i].training, 1e-4) << "step " << i;
  }
  EXPECT_NE(gpu.parameters, host.parameters) << "two machines that never round differently are one machine";
  EXPECT_EQ(gpu.parameters, again.parameters) << "every sum has one order";
}

TEST(Training, TheGpusGradientsAreTheHosts) {
  if (!gpu_unavailable().empty()) GTEST_SKIP() << gpu_unavailable();
  const std::vector<double> shaken = shaken_parameters(tiny);
  const std::vector<float> parameters(shaken.begin(), shaken.end());
  const Batch batch = random_batch(tiny, 2);
  Model<double> exact(tiny, 2, AttentionKind::unfused, make_host<double>(), {parameters.begin(), parameters.end()});
  Model<float> gpu(tiny, 2, AttentionKind::fused, make_gpu(), parameters);
  EXPECT_NEAR(gpu.forward(batch), exact.forward(batch), 1e-5);
  gpu.backward(batch);
  exact.backward(batch);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_NEAR(gpu.gradients()[i], exact.gradients()[i], 1e-5 + 1e-4 * std::abs(exact.gradients()[i])) << "parameter " << i;
}

TEST(Training, RanksThatShareEverySequenceLoseWhatOneDoes) {
  const std::string text = some_text();
  const Tokenizer tokenizer = Tokenizer::learn(text, 260);
  Config config = tiny;
  config.vocabulary = tokenizer.size(), config.context = 24;
  const Dataset data(tokenizer.encode(text), config.context);
  TrainingOptions options;
  options.batch = 2, options.schedule.steps = 6, options.validate_every = 3, options.validation_batches = 2;
  Checkpoint alone = start(config, 7, tokenizer);
  train(alone, data, options, [](const Progress&) {});

  const auto transports = foveal::dist::thread_ranks(2);
  std::vector<Checkpoint> states(2, start(config, 7, tokenizer));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
#ifdef _OPENMP
      omp_set_num_threads(1);
#endif
      TrainingOptions mine = options;
      mine.ranks = Ranks(transports[rank], config.context);
      train(states[rank], data, mine, [](const Progress&) {});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(states[0].parameters, states[1].parameters) << "ranks must not part";
  for (std::size_t step = 0; step < alone.history.size(); ++step) {
    EXPECT_NEAR(states[0].history[step].training, alone.history[step].training, 1e-5) << step;
    if (!std::isnan(alone.history[step].validation)) {
      EXPECT_NEAR(states[0].history[step].validation, alone.history[step].validation, 1e-5);
    }
  }
  double moved = 0;  // the bias was trained as on one
  for (std::size_t i = 0; i < alone.parameters.size(); ++i)
    moved = std::max(moved, static_cast<double>(std::abs(alone.parameters[i] - states[0].parameters[i])));
  EXPECT_LT(moved, 1e-3);
  EXPECT_THROW(Ranks(transports[0], 22), std::runtime_error);
}

TEST(Training, LossFalls) {
  const SmallRun run;
  const Checkpoint state = run.trained(run.fresh());
  EXPECT_LT(state.history.back().validation, 0.8 * state.history.front().training);
}

TEST(Training, TheBiasIsTrained) {
  const SmallRun run;
  Checkpoint state = run.trained(run.fresh());
  const Parameters<float> p(run.config, state.parameters.data());
  for (const auto& block : p.blocks) {
    for (std::int64_t i = 0; i < run.config.attention(1).bias_size(); ++i) EXPECT_NE(block.bias[i], 0.0f);
  }
}

TEST(Training, AResumedRunEndsWhereAnUnbrokenOneDoes) {
  SmallRun run;
  const Checkpoint unbroken = run.trained(run.fresh());
  run.options.stop_after = 13;
  const foveal::test::OwnFolder folder;
  const std::string path = folder / "checkpoint";
  save(run.trained(run.fresh()), path);
  run.options.stop_after = 0;
  const Checkpoint resumed = run.trained(load_checkpoint(path));
  EXPECT_EQ(resumed.step, 30);
  EXPECT_EQ(resumed.parameters, unbroken.parameters);
  EXPECT_EQ(resumed.history.size(), unbroken.history.size());
}

TEST(CheckpointFile, IsRefusedWhenCutOrForeign) {
  const SmallRun run;
  const foveal::test::OwnFolder folder;
  const std::string path = folder / "damaged";
  save(run.fresh(), path);
  const auto whole = std::filesystem::file_size(path);
  for (const auto size : {whole - 1, whole / 2, std::uintmax_t{100}, std::uintmax_t{9}, std::uintmax_t{3}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(path, size);
    EXPECT_THROW(load_checkpoint(path), std::runtime_error) << size;
  }
  std::ofstream(path) << "something else altogether";
  EXPECT_THROW(load_checkpoint(path), std::runtime_error);
  EXPECT_THROW(load_checkpoint(path + ".missing"), std::runtime_error);
}

// The logits of a text read at once and token by token are the same: the loss at each prefix shows it.
TEST(Decoder, AgreesWithTheModel) {
  const std::vector<double> shaken = shaken_parameters(tiny);
  const std::vector<float> parameters(shaken.begin(), shaken.end());
  const Batch batch = random_batch(tiny, 1);
  Decoder decoder(tiny, parameters, tiny.context);
  double total = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const std::vector<float>& logits = decoder.next(batch.tokens[i]);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    total += std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(batch.targets[i])]);
  }
  Model<float> model(tiny, 1, AttentionKind::unfused, make_host<float>(), parameters);
  EXPECT_NEAR(total / static_cast<double>(tiny.context), model.forward(batch), 1e-4);
  EXPECT_THROW(decoder.next(0), std::runtime_error);
}

TEST(Sampling, IsAFunctionOfItsSeed) {
  const std::vector<float> parameters = initial_parameters(tiny, 1);
  const auto drawn = sample(tiny, parameters, {1, 2, 3}, 40, 7);
  EXPECT_EQ(drawn.size(), 40u);
  EXPECT_EQ(drawn, sample(tiny, parameters, {1, 2, 3}, 40, 7));
  EXPECT_NE(drawn, sample(tiny, parameters, {1, 2, 3}, 40, 8));
  EXPECT_THROW(sample(tiny, parameters, {}, 1, 7), std::runtime_error);
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  const Tokenizer tokenizer = Tokenizer::learn(some_text(), 320);
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  for (const std::string& text : {some_text(), bytes, std::string(" "), std::string("  the lord"), std::string()}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_GT(tokenizer.size(), 256);
  EXPECT_LT(tokenizer.encode(some_text()).size(), some_text().size() / 2);
  EXPECT_EQ(Tokenizer(tokenizer.merges()).encode(some_text()), tokenizer.encode(some_text()));
}

TEST(Dataset, TargetsFollowTokensAndPartsDoNotOverlap) {
  std::vector<std::int32_t> tokens(1000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  const Dataset data(tokens, 16);
  for (std::int64_t step = 0; step < 50; ++step) {
    const Batch batch = data.training(1, step, 3);
    ASSERT_EQ(batch.tokens.size(), 48u);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      EXPECT_LT(batch.targets[i], 950);
    }
    EXPECT_EQ(batch.tokens, data.training(1, step, 3).tokens);
    EXPECT_NE(batch.tokens, data.training(2, step, 3).tokens);
  }
  for (const std::int32_t token : data.validation(1, 2, 3).tokens) EXPECT_GE(token, 950);
  EXPECT_THROW(Dataset(tokens, 60), std::runtime_error);
}

}  // namespace
}  // namespace gpt
