from heal.cli import main

main()
