#include "plots.h"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

namespace gpt {
namespace {

std::string data_file(const std::string& png) { return std::filesystem::path(png).replace_extension(".dat").string(); }

void draw(const std::string& png, const std::string& size, const std::string& commands) {
  const std::string script = std::filesystem::path(png).replace_extension(".gp").string();
  std::ofstream(script) << fmt::format("set terminal pngcairo size {} font 'sans,11'\nset output '{}'\n", size, png) << commands;
  if (std::system(fmt::format("gnuplot '{}'", script).c_str()) != 0) {
    throw std::runtime_error(fmt::format("plots: gnuplot could not draw '{}'; the data is in '{}'", png, data_file(png)));
  }
}

}  // namespace

void plot_loss(const std::vector<Progress>& history, const std::string& png) {
  const std::string data = data_file(png);
  std::ofstream file(data);
  file << "# step training validation\n";
  for (const Progress& row : history) file << fmt::format("{} {:.6f} {:.6f}\n", row.step, row.training, row.validation);
  file.close();
  draw(png, "900,540",
       fmt::format("set datafile missing 'nan'\nset grid\nset xlabel 'step'\nset ylabel 'loss, nats per token'\n"
                   "plot '{0}' using 1:2 with lines lc rgb '#9ab7d9' title 'training',"
                   " '{0}' using 1:($3) with linespoints lw 2 pt 7 ps 0.6 lc rgb '#c0392b' title 'validation'\n",
                   data));
}

void plot_bias(const Config& config, const std::vector<float>& parameters, const std::string& png) {
  const std::string data = data_file(png);
  const Parameters<float> p(config, const_cast<float*>(parameters.data()));
  std::ofstream file(data);
  file << "# one block for each layer: distance, then the bias of each head less its mean\n";
  for (const auto& block : p.blocks) {
    std::vector<double> mean(static_cast<std::size_t>(config.heads));
    for (std::int64_t head = 0; head < config.heads; ++head) {
      for (std::int64_t d = 0; d <= config.reach; ++d) mean[static_cast<std::size_t>(head)] += block.bias[head * (config.reach + 1) + d];
      mean[static_cast<std::size_t>(head)] /= static_cast<double>(config.reach + 1);
    }
    for (std::int64_t d = 0; d <= config.reach; ++d) {
      file << d;
      for (std::int64_t head = 0; head < config.heads; ++head) {
        file << fmt::format(" {:.5f}", block.bias[head * (config.reach + 1) + d] - mean[static_cast<std::size_t>(head)]);
      }
      file << '\n';
    }
    file << "\n\n";
  }
  file.close();
  const std::int64_t columns = std::min<std::int64_t>(config.layers, 3), rows = (config.layers + columns - 1) / columns;
  std::string commands = fmt::format(
      "set multiplot layout {},{} title 'learned bias of the score, by distance (one line for each head)'\nset grid\nset logscale x\nset "
      "xrange [1:{}]\nset "
      "xlabel 'distance q\\_idx - kv\\_idx + 1'\n",
      rows, columns, config.reach + 1);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    commands += fmt::format("set title 'layer {}'\nplot for [head=2:{}] '{}' index {} using ($1+1):head with lines lw 1.5 notitle\n",
                            layer + 1, config.heads + 1, data, layer);
  }
  draw(png, fmt::format("{},{}", 400 * columns, 320 * rows + 40), commands);
}

}  // namespace gpt
