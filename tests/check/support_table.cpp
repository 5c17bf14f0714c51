// What `foveal support` prints, where the command is not built: for targets that only an emulator has.
#include <cstdio>

#include "check/support.h"

int main() { std::fputs(foveal::check::support_table().c_str(), stdout); }
