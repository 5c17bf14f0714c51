#pragma once
// The frame of the command line: each subcommand is one file with one function that adds it; main.cpp lists them.
#include <CLI/CLI.hpp>
#include <string>

#include "foveal/foveal.h"

namespace foveal::cli {

/// What a shell sees.
enum ExitCode : int {
  exit_ok = 0,
  exit_check_failed = 1,  ///< `check` found a difference, or a run failed
  exit_usage = 2,         ///< a wrong option, argument, problem line or file
  exit_unsupported = 3,   ///< the call is right, but nothing here can do it
  exit_failure = 4,       ///< a device, compiler or system error
};

// Each adds its subcommand and, as its callback, what it does; failures leave as exceptions, a failed check as Exit.
void add_targets(CLI::App& app);
void add_check(CLI::App& app);
void add_bench(CLI::App& app);
void add_explain(CLI::App& app);
void add_run(CLI::App& app);
void add_cache(CLI::App& app);
void add_emit(CLI::App& app);
void add_support(CLI::App& app);
void add_tune(CLI::App& app);

/// Ends the command with this code after all of its output has been written.
struct Exit {
  int code;
};

/// --backend, --target, --threads, the same everywhere.
void add_plan_options(CLI::App& command, PlanOptions& options);

}  // namespace foveal::cli
