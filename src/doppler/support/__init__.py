"""What every other part uses: errors, options, files, compiled code, signals, worker pools."""
