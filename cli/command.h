#pragma once
// Subcommands of the command line: one file each, with a function that adds it; main.cpp calls them.
#include <CLI/CLI.hpp>
#include <string>

#include "foveal/foveal.h"

namespace foveal::cli {

enum ExitCode : int {
  exit_ok = 0,
  exit_check_failed = 1,  ///< a check failed
  exit_usage = 2,         ///< a wrong option, argument, problem line or file
  exit_unsupported = 3,   ///< valid, but nothing on this machine can do it
  exit_failure = 4,       ///< a device, compiler or system error
  exit_no_memory = 5,     ///< valid, but too large for the memory of this machine
};

// Callbacks report errors as exceptions, and a failed check as Exit.
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

/// Says on standard error what is wrong, as far as it can be written.
void complain(const std::string& message) noexcept;
/// The same of an error; returns the code of a command that ends with it.
ExitCode complain(const std::exception& error) noexcept;

/// The code of a command that ends with such an error.
ExitCode exit_code(ErrorCode code);

/// Adds --backend, --target and --threads.
void add_plan_options(CLI::App& command, PlanOptions& options);

}  // namespace foveal::cli
