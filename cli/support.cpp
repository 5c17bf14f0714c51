// foveal support: which features and types each target takes.
#include "check/support.h"

#include <fmt/core.h>

#include "command.h"

namespace foveal::cli {

void add_support(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("support", "Which features and types each target of this machine, and those for GPUs, take, as a Markdown table");
  command->callback([] { fmt::print("{}", check::support_table()); });
}

}  // namespace foveal::cli
